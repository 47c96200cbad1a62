package vmpool

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// What callers decide on. The texts of ErrNoAvailableIPs and ErrInvalidIPAddress are those of the adaptor's own manager.
var (
	// ErrNoAvailableIPs: every VM is in use, quarantined or silent. Wait, or add VMs.
	ErrNoAvailableIPs = errors.New("no available IPs in pool")
	// ErrBeingCleaned: the ID gave its VM back and asks again before the VM was rebooted. Come back later.
	ErrBeingCleaned = errors.New("the allocation's VM is being cleaned")
	// ErrBeingChecked: another request of the same ID is still checking its VM. Come back later.
	ErrBeingChecked = errors.New("the allocation's VM is still being checked")
	// ErrTooLate: no VM was found ready within the agent's vm-allocate-timeout. Come back later.
	ErrTooLate = errors.New("no VM was ready in time")
	// ErrDeallocated: the ID was deallocated while its allocation was under way. It has no VM.
	ErrDeallocated = errors.New("the allocation was deallocated meanwhile")
	// ErrInvalidIPAddress: the address is none.
	ErrInvalidIPAddress = errors.New("invalid IP address")
	// ErrInvalidRequest: the agent can't use the request; the same one never succeeds.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrUnknownAllocation: the ID has no VM.
	ErrUnknownAllocation = errors.New("unknown allocation")
	// ErrUnknownPool: the agent has no pool of that name.
	ErrUnknownPool = errors.New("unknown pool")
	// ErrUnauthorized: the token is missing or wrong.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrVM: the VM itself failed. The allocation is unchanged.
	ErrVM = errors.New("the VM failed")
	// ErrStateFull: the pool's ConfigMap has no room left.
	ErrStateFull = errors.New("the pool state is full")
	// ErrRetrievingPoolState: the state can't be read or written now, or the agent has not opened its pools yet.
	ErrRetrievingPoolState = errors.New("failed to retrieve pool state")
	// ErrUnavailable: no agent answers.
	ErrUnavailable = errors.New("the Berth agent does not answer")
)

var byCode = map[string]error{
	"exhausted":          ErrNoAvailableIPs,
	"being-cleaned":      ErrBeingCleaned,
	"being-checked":      ErrBeingChecked,
	"too-late":           ErrTooLate,
	"deallocated":        ErrDeallocated,
	"invalid":            ErrInvalidRequest,
	"unknown-allocation": ErrUnknownAllocation,
	"unknown-ip":         ErrUnknownAllocation,
	"unknown-pool":       ErrUnknownPool,
	"unauthorized":       ErrUnauthorized,
	"vm":                 ErrVM,
	"state-full":         ErrStateFull,
	"state-unreadable":   ErrRetrievingPoolState,
	"state-refused":      ErrRetrievingPoolState,
	"state-unavailable":  ErrRetrievingPoolState,
	"starting":           ErrRetrievingPoolState,
	"busy":               ErrRetrievingPoolState,
}

// APIError is a refusal in the agent's own words.
type APIError struct {
	// Status is the HTTP status.
	Status int
	// Code stays the same when the text changes; openapi.json lists them.
	Code string
	// Message has the whole chain of causes.
	Message string
	// Retry says whether the same request may succeed later.
	Retry bool
	// RetryAfter is how long the agent asks to wait; zero if it does not say.
	RetryAfter time.Duration
}

func (e *APIError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the Berth agent answered %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

// Is reports whether the refusal is of the kind of a sentinel of this package.
func (e *APIError) Is(target error) bool {
	kind, known := byCode[e.Code]
	return known && kind == target
}

// transportError is a request that got no answer.
type transportError struct{ cause error }

func (e *transportError) Error() string        { return ErrUnavailable.Error() + ": " + e.cause.Error() }
func (e *transportError) Unwrap() error        { return e.cause }
func (e *transportError) Is(target error) bool { return target == ErrUnavailable }
