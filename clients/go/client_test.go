package vmpool

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// served is a server that answers with the steps in their order and repeats the last one.
type served struct {
	*httptest.Server
	mutex sync.Mutex
	seen  []http.Request
	steps []http.HandlerFunc
}

func serve(t *testing.T, steps ...http.HandlerFunc) *served {
	t.Helper()
	s := &served{steps: steps}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mutex.Lock()
		step := s.steps[min(len(s.seen), len(s.steps)-1)]
		s.seen = append(s.seen, *r.Clone(context.Background()))
		s.mutex.Unlock()
		step(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *served) requests() []http.Request {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.seen
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func refuse(status int, code string, retry bool) http.HandlerFunc {
	text := `{"error":"said the agent","code":"` + code + `","retry":false}`
	if retry {
		text = strings.Replace(text, "false", "true", 1)
	}
	return answer(status, text)
}

const given = `{"allocationID":"a","ip":"10.0.0.7","pool":"default","nodeName":"worker","podName":"nginx","podNamespace":"","allocatedAt":"2026-04-23T09:56:00Z"}`

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func client(t *testing.T, config Config) *Client {
	t.Helper()
	if config.TokenFile == "" && !strings.HasPrefix(config.Address, "unix:") {
		config.TokenFile = tokenFile(t, "0123456789abcdef")
	}
	if config.RetryInterval == 0 {
		config.RetryInterval = time.Millisecond
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAddressesThatAreNone(t *testing.T) {
	for _, address := range []string{
		"", "10.0.0.1:9470", "unix://relative/berth.sock", "ftp://host", "http://", "http://127.0.0.1:1",
	} {
		if _, err := New(Config{Address: address}); err == nil {
			t.Errorf("%q was accepted", address)
		}
	}
}

func TestAnAgentThatAsksToComeBackIsAskedAgain(t *testing.T) {
	s := serve(t,
		refuse(503, "starting", true),
		refuse(503, "busy", true),
		answer(502, "<html>a proxy</html>"),
		answer(200, given))
	ip, err := client(t, Config{Address: s.URL}).AllocateIP(context.Background(), "a", "nginx")
	if err != nil || ip != netip.MustParseAddr("10.0.0.7") {
		t.Fatal(ip, err)
	}
	if n := len(s.requests()); n != 4 {
		t.Fatalf("%d requests", n)
	}
}

func TestRefusalsAreTypedAndNotRepeated(t *testing.T) {
	for code, want := range map[string]error{
		"exhausted":     ErrNoAvailableIPs,
		"being-cleaned": ErrBeingCleaned,
		"being-checked": ErrBeingChecked,
		"too-late":      ErrTooLate,
		"invalid":       ErrInvalidRequest,
		"unknown-pool":  ErrUnknownPool,
		"unauthorized":  ErrUnauthorized,
		"state-full":    ErrStateFull,
	} {
		s := serve(t, refuse(409, code, code == "exhausted" || code == "being-cleaned"))
		_, err := client(t, Config{Address: s.URL}).AllocateIP(context.Background(), "a", "")
		if !errors.Is(err, want) || errors.Is(err, ErrVM) {
			t.Errorf("%s: %v", code, err)
		}
		var refusal *APIError
		if !errors.As(err, &refusal) || refusal.Message != "said the agent" || refusal.Status != 409 {
			t.Errorf("%s: %+v", code, refusal)
		}
		if n := len(s.requests()); n != 1 {
			t.Errorf("%s: %d requests", code, n)
		}
	}
}

func TestRetriesAreCounted(t *testing.T) {
	s := serve(t, refuse(503, "state-unavailable", true))
	_, err := client(t, Config{Address: s.URL, MaxRetries: 3}).AllocateIP(context.Background(), "a", "")
	if !errors.Is(err, ErrRetrievingPoolState) || !strings.Contains(err.Error(), "after 4 tries") {
		t.Fatal(err)
	}
	if n := len(s.requests()); n != 4 {
		t.Fatalf("%d requests", n)
	}
	s = serve(t, refuse(503, "busy", true))
	_ = client(t, Config{Address: s.URL, MaxRetries: -1}).DeallocateIP(context.Background(), "a")
	if n := len(s.requests()); n != 1 {
		t.Fatalf("%d requests of a client that never retries", n)
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		refuse(503, "starting", true)(w, r)
	}, answer(200, given))
	begun := time.Now()
	if _, err := client(t, Config{Address: s.URL}).AllocateIP(context.Background(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begun); waited < time.Second {
		t.Fatalf("came back after %v", waited)
	}
	now := time.Date(2026, 11, 17, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-3": 0, "2": 2 * time.Second, now.Add(5 * time.Second).Format(http.TimeFormat): 5 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v instead of %v", value, got, want)
		}
	}
}

// An answer that would come after the deadline is not waited for.
func TestADeadlineEndsTheRetries(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3600")
		refuse(503, "starting", true)(w, r)
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := client(t, Config{Address: s.URL}).AllocateIP(ctx, "a", "")
	if !errors.Is(err, ErrRetrievingPoolState) || len(s.requests()) != 1 {
		t.Fatal(err)
	}
}

func TestACancelledContextEndsARequestThatHangs(t *testing.T) {
	hangs := make(chan struct{})
	defer close(hangs)
	begun := make(chan struct{}, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-begun
		cancel()
	}()
	_, err := client(t, Config{Address: s.URL}).AllocateIP(ctx, "a", "")
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestTheTokenIsReadForEveryRequest(t *testing.T) {
	path := tokenFile(t, "the-first-token-of-all")
	rotated := false
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer the-second-token-of-all":
			answer(200, given)(w, r)
		case "Bearer the-first-token-of-all":
			// Replaced while the request is under way.
			if !rotated {
				rotated = true
				if err := os.WriteFile(path, []byte("the-second-token-of-all"), 0o600); err != nil {
					t.Error(err)
				}
			}
			refuse(401, "unauthorized", false)(w, r)
		default:
			t.Errorf("sent %q", r.Header.Get("Authorization"))
		}
	})
	c := client(t, Config{Address: s.URL, TokenFile: path})
	if _, err := c.AllocateIP(context.Background(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("the-first-token-of-all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocateIP(context.Background(), "a", ""); !errors.Is(err, ErrUnauthorized) {
		t.Fatal(err)
	}
	if n := len(s.requests()); n != 3 {
		t.Fatalf("%d requests: a token that is wrong is sent once", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocateIP(context.Background(), "a", ""); err == nil || len(s.requests()) != 3 {
		t.Fatal("a request without a token was sent", err)
	}
}

func TestATokenFollowsNoRedirect(t *testing.T) {
	elsewhere := serve(t, answer(200, given))
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	if _, err := client(t, Config{Address: s.URL}).AllocateIP(context.Background(), "a", ""); err == nil {
		t.Fatal("a redirect was followed")
	}
	if len(elsewhere.requests()) != 0 {
		t.Fatal("the token went elsewhere")
	}
}

func TestAnAgentThatIsNotUpYetIsWaitedFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "berth.sock")
	c := client(t, Config{Address: "unix://" + socket, RetryInterval: 20 * time.Millisecond, MaxRetries: 200})
	started := make(chan net.Listener, 1)
	go func() {
		time.Sleep(50 * time.Millisecond)
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Error(err)
		}
		started <- listener
		_ = http.Serve(listener, answer(200, given))
	}()
	_, err := c.AllocateIP(context.Background(), "a", "")
	(<-started).Close()
	if err != nil {
		t.Fatal(err)
	}
	c = client(t, Config{Address: "unix://" + socket + ".none", MaxRetries: 1})
	if err := c.RecoverState(context.Background()); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}

func TestIDsSurviveTheURL(t *testing.T) {
	s := serve(t, answer(200, `{"returned":"nothing"}`))
	c := client(t, Config{Address: s.URL, Pool: "gpu & co", UserAgent: "peerpod-ctrl"})
	for _, id := range []string{"a/b", "a b?c=d", "unreadable-fd00::1", "é"} {
		if err := c.DeallocateIP(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		seen := s.requests()
		last := seen[len(seen)-1]
		if last.URL.Path != "/v1/vms/allocations/"+id || strings.Count(last.URL.EscapedPath(), "/") != 4 {
			t.Errorf("%q was sent as %q", id, last.URL.EscapedPath())
		}
		if last.URL.Query().Get("pool") != "gpu & co" || last.UserAgent() != "peerpod-ctrl" {
			t.Errorf("%v %q", last.URL.Query(), last.UserAgent())
		}
	}
	before := len(s.requests())
	if err := c.DeallocateInstance(context.Background(), ""); err != nil || len(s.requests()) != before {
		t.Fatal("an empty instance ID is nothing to delete", err)
	}
}

func TestAVMThatWasGivenBackIsNotFound(t *testing.T) {
	quarantined := strings.Replace(given, "}", `,"quarantine":{"since":"2026-04-23T10:00:00Z","by":"worker","tries":2,"error":"no answer"}}`, 1)
	s := serve(t, answer(200, quarantined))
	c := client(t, Config{Address: s.URL})
	if _, found, err := c.GetIPfromAllocationID(context.Background(), "a"); found || err != nil {
		t.Fatal(found, err)
	}
	// Nothing to give back a second time.
	if err := c.DeallocateByIP(context.Background(), netip.MustParseAddr("10.0.0.7")); err != nil {
		t.Fatal(err)
	}
	for _, seen := range s.requests() {
		if seen.Method != http.MethodGet {
			t.Errorf("%s %s", seen.Method, seen.URL)
		}
	}
	if _, _, err := c.GetAllocationIDfromIP(context.Background(), netip.Addr{}); !errors.Is(err, ErrInvalidIPAddress) {
		t.Fatal(err)
	}
}

func TestAVMThatIsBeingCheckedIsNotFoundAndCanBeGivenBack(t *testing.T) {
	checked := strings.Replace(given, "}", `,"checking":{"since":"2026-04-23T10:00:00Z","by":"worker"}}`, 1)
	s := serve(t, answer(200, checked))
	c := client(t, Config{Address: s.URL})
	if ip, found, err := c.GetIPfromAllocationID(context.Background(), "a"); found || err != nil {
		t.Fatal(ip, found, err)
	}
	ip := netip.MustParseAddr("10.0.0.7")
	if id, found, err := c.GetAllocationIDfromIP(context.Background(), ip); found || err != nil {
		t.Fatal(id, found, err)
	}
	if err := c.DeallocateByIP(context.Background(), ip); err != nil {
		t.Fatal(err)
	}
	seen := s.requests()
	if last := seen[len(seen)-1]; last.Method != http.MethodDelete {
		t.Fatalf("%s %s", last.Method, last.URL)
	}
}

func TestAnAddressOfAnotherPoolIsNotGivenBack(t *testing.T) {
	s := serve(t, answer(200, given))
	c := client(t, Config{Address: s.URL, Pool: "gpu"})
	if _, found, err := c.GetAllocationIDfromIP(context.Background(), netip.MustParseAddr("::ffff:10.0.0.7")); found || err != nil {
		t.Fatal(found, err)
	}
	if path := s.requests()[0].URL.Path; path != "/v1/vms/ips/10.0.0.7" {
		t.Fatal(path)
	}
}

func TestTheStatusIsOfThePoolThatAllocates(t *testing.T) {
	gpu, def := `{"pool":"gpu","total":1}`, `{"pool":"default","total":9,"available":4,"inUse":3,"quarantined":2}`
	c := client(t, Config{Address: serve(t, answer(200, `{"pools":[`+gpu+`,`+def+`]}`)).URL})
	total, available, inUse, err := c.GetPoolStatus(context.Background())
	if err != nil || total != 9 || available != 4 || inUse != 5 {
		t.Fatal(total, available, inUse, err)
	}
	c = client(t, Config{Address: serve(t, answer(200, `{"pools":[`+gpu+`,`+gpu+`]}`)).URL})
	if _, _, _, err := c.GetPoolStatus(context.Background()); !errors.Is(err, ErrUnknownPool) {
		t.Fatal(err)
	}
}
