package vmpool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	backoffFactor = 1.5
	maxPause      = 10 * time.Second
)

// request is one call of the API; it can be sent any number of times.
type request struct {
	method string
	// path has its segments escaped already.
	path  string
	query url.Values
	body  []byte
	kind  string
}

// do sends the request until it is answered for good, the retries are used up or the context ends.
func (c *Client) do(ctx context.Context, asked request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	pause := c.config.RetryInterval
	refusedToken := ""
	for tries := 0; ; tries++ {
		token, err := c.token()
		if err == nil {
			err = c.send(ctx, asked, token, answer)
		}
		if err == nil {
			return nil
		}
		// The token was replaced while the request was under way: the new one counts at once, and only once.
		if errors.Is(err, ErrUnauthorized) && token != refusedToken {
			refusedToken = token
			if now, readErr := c.token(); readErr == nil && now != token {
				continue
			}
		}
		if ctx.Err() != nil || !worthRetrying(err) || tries >= c.config.MaxRetries {
			return failed(asked, tries, ctx, err)
		}
		wait := jittered(pause)
		var refusal *APIError
		if errors.As(err, &refusal) && refusal.RetryAfter > wait {
			wait = refusal.RetryAfter
		}
		pause = min(time.Duration(float64(pause)*backoffFactor), maxPause)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return failed(asked, tries, ctx, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return failed(asked, tries, ctx, err)
		case <-timer.C:
		}
	}
}

func failed(asked request, tries int, ctx context.Context, err error) error {
	if tries > 0 {
		err = fmt.Errorf("after %d tries: %w", tries+1, err)
	}
	// The caller asks errors.Is(err, context.Canceled), whatever the last try had met.
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return fmt.Errorf("vmpool: %s %s: %w", asked.method, asked.path, err)
}

// worthRetrying tells what another try may mend. An exhausted pool is the caller's to wait for: the adaptor's
// caller, the kubelet, comes back anyway.
func worthRetrying(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	var refusal *APIError
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.Code {
	case "exhausted", "being-cleaned":
		return false
	case "":
		// Not the agent's own answer: a proxy's, or that of a server which ends.
		return refusal.Status == http.StatusTooManyRequests || refusal.Status >= http.StatusInternalServerError
	}
	return refusal.Retry
}

// jittered is between half of the pause and one and a half of it: those who failed together come back apart.
func jittered(pause time.Duration) time.Duration {
	return pause/2 + time.Duration(rand.Int64N(int64(pause)+1))
}

func (c *Client) send(ctx context.Context, asked request, token string, answer any) error {
	target := *c.base
	target.RawPath = c.base.EscapedPath() + "/v1/vms" + asked.path
	path, err := url.PathUnescape(target.RawPath)
	if err != nil {
		return err
	}
	target.Path = path
	target.RawQuery = asked.query.Encode()
	// A reader of no bytes would be sent as a body of unknown length.
	var body io.Reader
	if asked.body != nil {
		body = bytes.NewReader(asked.body)
	}
	sent, err := http.NewRequestWithContext(ctx, asked.method, target.String(), body)
	if err != nil {
		return err
	}
	sent.Header.Set("User-Agent", c.config.UserAgent)
	if asked.kind != "" {
		sent.Header.Set("Content-Type", asked.kind)
	}
	if token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := c.http.Do(sent)
	if err != nil {
		return &transportError{cause: err}
	}
	defer got.Body.Close()
	if got.StatusCode < 200 || got.StatusCode > 299 {
		return refusal(got)
	}
	text, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	if err != nil {
		return &transportError{cause: err}
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the agent's answer can't be read: %w", err)
	}
	return nil
}

func refusal(got *http.Response) error {
	failure := struct {
		Error string `json:"error"`
		Code  string `json:"code"`
		Retry bool   `json:"retry"`
	}{}
	text, err := io.ReadAll(io.LimitReader(got.Body, maxFailure))
	if err != nil {
		return &transportError{cause: err}
	}
	// What is no JSON is not the agent's answer; the status says enough.
	_ = json.Unmarshal(text, &failure)
	return &APIError{
		Status:     got.StatusCode,
		Code:       failure.Code,
		Message:    failure.Error,
		Retry:      failure.Retry,
		RetryAfter: retryAfter(got.Header.Get("Retry-After"), time.Now()),
	}
}

// retryAfter reads seconds or a date; what is neither counts as nothing.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
