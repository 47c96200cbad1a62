package vmpool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Config says where the agent is and how patient the client is. Only Address is required.
type Config struct {
	// Address is unix:///run/berth-vms/berth.sock, http://127.0.0.1:9470 or https://pools.example:9470.
	Address string
	// TokenFile holds the bearer token for TCP. It is read again for every request, so that a rotated token is used
	// without a restart.
	TokenFile string
	// TLS is used for https addresses. The agent itself serves plain HTTP: put a proxy in front of it, or stay on
	// loopback, because the token would cross the network in the clear.
	TLS *tls.Config
	// Pool is the pool's name. Empty means the default pool, or the only one.
	Pool string
	// Timeout bounds an operation with all its retries, if the context has no earlier deadline. Default 60 s.
	Timeout time.Duration
	// MaxRetries is how often a request is tried again. Default 5; negative means never.
	MaxRetries int
	// RetryInterval is the first pause; each further one is 1.5 times as long, with jitter. Default 500 ms.
	RetryInterval time.Duration
	// UserAgent names the calling program in the agent's log. Default berth-vmpool-go.
	UserAgent string
}

const (
	defaultTimeout       = 60 * time.Second
	defaultMaxRetries    = 5
	defaultRetryInterval = 500 * time.Millisecond
	defaultUserAgent     = "berth-vmpool-go"
	dialTimeout          = 5 * time.Second
	maxAnswer            = 64 << 20
	maxFailure           = 1 << 20
)

// Client calls one agent. It is safe for concurrent use.
type Client struct {
	base      *url.URL
	http      *http.Client
	config    Config
	transport *http.Transport
}

// New checks the configuration. It does not connect: an agent that is not up yet is waited for by each request.
func New(config Config) (*Client, error) {
	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}
	if config.MaxRetries == 0 {
		config.MaxRetries = defaultMaxRetries
	}
	if config.RetryInterval <= 0 {
		config.RetryInterval = defaultRetryInterval
	}
	if config.UserAgent == "" {
		config.UserAgent = defaultUserAgent
	}
	address, err := url.Parse(config.Address)
	if err != nil {
		return nil, fmt.Errorf("vmpool: address %q: %w", config.Address, err)
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{
		DialContext:     dialer.DialContext,
		TLSClientConfig: config.TLS,
		// The agent is on this node or named by address: a proxy of the environment is not meant for it.
		Proxy:               nil,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   false,
	}
	base := address
	switch address.Scheme {
	case "unix":
		if address.Host != "" || !filepath.IsAbs(address.Path) {
			return nil, fmt.Errorf("vmpool: address %q: a socket is unix:///path/to/berth.sock", config.Address)
		}
		socket := address.Path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
		base = &url.URL{Scheme: "http", Host: "berth"}
	case "http", "https":
		if address.Host == "" {
			return nil, fmt.Errorf("vmpool: address %q names no host", config.Address)
		}
		if config.TokenFile == "" {
			return nil, fmt.Errorf("vmpool: address %q needs a TokenFile: TCP is served only with a token", config.Address)
		}
	default:
		return nil, fmt.Errorf("vmpool: address %q is none of unix://, http://, https://", config.Address)
	}
	client := &http.Client{
		Transport: transport,
		// The agent redirects nobody. Following one would send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Client{base: base, http: client, config: config, transport: transport}, nil
}

// Close drops idle connections.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
}

// token reads the token; empty on the socket, where the file's mode decides who may connect.
func (c *Client) token() (string, error) {
	if c.config.TokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.config.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("token file is empty")
	}
	return token, nil
}
