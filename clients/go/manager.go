package vmpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// Manager is the pool manager that an adaptor expects.
type Manager interface {
	AllocateIP(ctx context.Context, allocationID, podName string) (netip.Addr, error)
	DeallocateIP(ctx context.Context, allocationID string) error
	GetIPfromAllocationID(ctx context.Context, allocationID string) (netip.Addr, bool, error)
	GetAllocationIDfromIP(ctx context.Context, ip netip.Addr) (string, bool, error)
	GetPoolStatus(ctx context.Context) (total, available, inUse int, err error)
	ListAllocatedIPs(ctx context.Context) (map[string]IPAllocation, error)
	RecoverState(ctx context.Context) error
}

var _ Manager = (*Client)(nil)

// IPAllocation is one VM that a pod has, or that is being checked for it, or that it had and that is being cleaned.
type IPAllocation struct {
	AllocationID string    `json:"allocationID"`
	IP           string    `json:"ip"`
	Pool         string    `json:"pool"`
	NodeName     string    `json:"nodeName"`
	PodName      string    `json:"podName"`
	PodNamespace string    `json:"podNamespace"`
	AllocatedAt  time.Time `json:"allocatedAt"`
	// Checking is set while the VM is not yet found ready: no allocation was answered with it, and another VM may take its
	// place.
	Checking *Checking `json:"checking,omitempty"`
	// Quarantine is set when the VM was given back and is not clean yet.
	Quarantine *Quarantine `json:"quarantine,omitempty"`
}

// Checking is a readiness check under way.
type Checking struct {
	Since time.Time `json:"since"`
	// By is the node that checks.
	By string `json:"by"`
}

// Quarantine is what is known of a cleanup that is not done yet.
type Quarantine struct {
	Since time.Time `json:"since"`
	// By is the node that cleans.
	By string `json:"by"`
	// Tries that failed, and why the last one did.
	Tries int    `json:"tries"`
	Error string `json:"error,omitempty"`
}

// Applicant is who asks for a VM.
type Applicant struct {
	AllocationID string `json:"allocationID"`
	PodName      string `json:"podName,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
}

// AllocateIP allocates a VM that is ready. The same ID gets the same VM.
func (c *Client) AllocateIP(ctx context.Context, allocationID, podName string) (netip.Addr, error) {
	allocation, err := c.Allocate(ctx, Applicant{AllocationID: allocationID, PodName: podName})
	if err != nil {
		return netip.Addr{}, err
	}
	return address(allocation.IP)
}

// Allocate is AllocateIP with the pod's namespace, and with all that is known of the allocation.
func (c *Client) Allocate(ctx context.Context, applicant Applicant) (IPAllocation, error) {
	var allocation IPAllocation
	body, err := json.Marshal(applicant)
	if err != nil {
		return allocation, err
	}
	err = c.do(ctx, request{
		method: http.MethodPost, path: "/allocations", query: c.inPool(), body: body, kind: "application/json",
	}, &allocation)
	return allocation, err
}

// DeallocateIP gives the ID's VM back. The VM is free after its reboot. An ID without a VM is no error.
func (c *Client) DeallocateIP(ctx context.Context, allocationID string) error {
	if allocationID == "" {
		return nil
	}
	var ended struct{}
	return c.do(ctx, request{method: http.MethodDelete, path: byID(allocationID), query: c.inPool()}, &ended)
}

// DeallocateByIP gives back the VM with this address, for callers that know nothing else. An address that nobody
// has is no error.
//
// Prefer the allocation ID: an address may belong to another pod by now, an ID never does.
func (c *Client) DeallocateByIP(ctx context.Context, ip netip.Addr) error {
	allocation, err := c.byIP(ctx, ip)
	// One that is being checked is given back too: the check ends, and nobody gets the VM.
	if err != nil || allocation.AllocationID == "" || allocation.Quarantine != nil {
		return err
	}
	return c.DeallocateIP(ctx, allocation.AllocationID)
}

// DeallocateInstance gives back the VM of an instance ID: the allocation ID, or, in PeerPods that an older adaptor
// wrote, the VM's address.
func (c *Client) DeallocateInstance(ctx context.Context, instanceID string) error {
	if instanceID == "" {
		return nil
	}
	if ip, err := netip.ParseAddr(instanceID); err == nil {
		return c.DeallocateByIP(ctx, ip)
	}
	return c.DeallocateIP(ctx, instanceID)
}

// GetIPfromAllocationID finds the VM of an ID. A VM that was given back, or that is still being checked, is not found.
func (c *Client) GetIPfromAllocationID(ctx context.Context, allocationID string) (netip.Addr, bool, error) {
	if allocationID == "" {
		return netip.Addr{}, false, nil
	}
	allocation, err := c.find(ctx, request{method: http.MethodGet, path: byID(allocationID), query: c.inPool()})
	if err != nil || !allocation.inUse() {
		return netip.Addr{}, false, err
	}
	ip, err := address(allocation.IP)
	return ip, err == nil, err
}

// GetAllocationIDfromIP finds who has a VM. A VM that was given back, or that is still being checked, is nobody's.
func (c *Client) GetAllocationIDfromIP(ctx context.Context, ip netip.Addr) (string, bool, error) {
	allocation, err := c.byIP(ctx, ip)
	if err != nil || !allocation.inUse() {
		return "", false, err
	}
	return allocation.AllocationID, true, nil
}

// byIP asks whose a VM is, in whatever stage; the zero allocation if it is nobody's in this pool.
func (c *Client) byIP(ctx context.Context, ip netip.Addr) (IPAllocation, error) {
	if !ip.IsValid() {
		return IPAllocation{}, fmt.Errorf("vmpool: %w", ErrInvalidIPAddress)
	}
	// A zone is this machine's business, and an IPv4 address has one form.
	plain := ip.Unmap().WithZone("").String()
	allocation, err := c.find(ctx, request{method: http.MethodGet, path: "/ips/" + url.PathEscape(plain)})
	if err != nil || c.config.Pool != "" && allocation.Pool != c.config.Pool {
		return IPAllocation{}, err
	}
	return allocation, nil
}

// GetPoolStatus counts the VMs. Those being cleaned count as in use: total = available + inUse.
func (c *Client) GetPoolStatus(ctx context.Context) (total, available, inUse int, err error) {
	status, err := c.PoolStatus(ctx)
	return status.Total, status.Available, status.InUse + status.Quarantined, err
}

// Status is a pool in numbers, and what is wrong with it.
type Status struct {
	Pool        string `json:"pool"`
	Total       int    `json:"total"`
	Available   int    `json:"available"`
	InUse       int    `json:"inUse"`
	Quarantined int    `json:"quarantined"`
	// Silent are free VMs that are passed over because they did not answer.
	Silent []string `json:"silent"`
	// Uncleaned are quarantined VMs whose last cleanup failed.
	Uncleaned []string `json:"uncleaned"`
	// Doubled are VMs with two allocations: another program broke the state.
	Doubled []string `json:"doubled"`
	// Strays are entries of the state that are no allocation.
	Strays []string `json:"strays"`
}

// PoolStatus is GetPoolStatus in full.
func (c *Client) PoolStatus(ctx context.Context) (Status, error) {
	var answer struct {
		Pools []Status `json:"pools"`
	}
	if err := c.do(ctx, request{method: http.MethodGet, path: "/status", query: c.inPool()}, &answer); err != nil {
		return Status{}, err
	}
	// Without a name the same pool is meant as in an allocation: the only one, or the default.
	if len(answer.Pools) == 1 {
		return answer.Pools[0], nil
	}
	for _, pool := range answer.Pools {
		if pool.Pool == "default" {
			return pool, nil
		}
	}
	return Status{}, fmt.Errorf("vmpool: %w: the agent has %d pools, name one of them", ErrUnknownPool, len(answer.Pools))
}

// ListAllocatedIPs lists the allocations by ID, those being checked and those being cleaned included.
func (c *Client) ListAllocatedIPs(ctx context.Context) (map[string]IPAllocation, error) {
	var answer struct {
		Allocations []IPAllocation `json:"allocations"`
	}
	if err := c.do(ctx, request{method: http.MethodGet, path: "/allocations", query: c.inPool()}, &answer); err != nil {
		return nil, err
	}
	all := make(map[string]IPAllocation, len(answer.Allocations))
	for _, allocation := range answer.Allocations {
		all[allocation.AllocationID] = allocation
	}
	return all, nil
}

// RecoverState takes back every VM of the agent's node: each is rebooted and free after that. Call it once when the
// adaptor starts, before its first allocation: the node's pods died with the adaptor's last process.
func (c *Client) RecoverState(ctx context.Context) error {
	query := c.inPool()
	query.Set("takeBack", strconv.FormatBool(true))
	var done struct{}
	return c.do(ctx, request{method: http.MethodPost, path: "/recover", query: query}, &done)
}

// PutUserData writes the VM's cidata/user-data, whole. The agent has the SSH key; the caller needs none.
func (c *Client) PutUserData(ctx context.Context, allocationID string, data []byte) error {
	if data == nil {
		data = []byte{}
	}
	var written struct{}
	return c.do(ctx, request{
		method: http.MethodPut, path: byID(allocationID) + "/user-data", query: c.inPool(), body: data,
		kind: "application/octet-stream",
	}, &written)
}

// find asks for one allocation, in whatever stage; the zero allocation if there is none.
func (c *Client) find(ctx context.Context, asked request) (IPAllocation, error) {
	var allocation IPAllocation
	err := c.do(ctx, asked, &allocation)
	switch {
	case errors.Is(err, ErrUnknownAllocation):
		return IPAllocation{}, nil
	case err != nil:
		return IPAllocation{}, err
	}
	return allocation, nil
}

// inUse says whether a pod has the VM: it was found ready, and not given back.
func (a IPAllocation) inUse() bool {
	return a.AllocationID != "" && a.Checking == nil && a.Quarantine == nil
}

func (c *Client) inPool() url.Values {
	query := url.Values{}
	if c.config.Pool != "" {
		query.Set("pool", c.config.Pool)
	}
	return query
}

func byID(allocationID string) string {
	return "/allocations/" + url.PathEscape(allocationID)
}

func address(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("vmpool: %w: %q", ErrInvalidIPAddress, text)
	}
	return ip, nil
}
