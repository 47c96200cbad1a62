// Package vmpool is the client of Berth's VM pools for cloud-api-adaptor and peerpod-ctrl.
//
// It has the methods of the adaptor's own pool manager ([Manager]) and calls the Berth agent over HTTP: on the
// agent's unix socket, or on TCP with a bearer token. It needs nothing beyond the standard library.
//
// Every method is idempotent and takes a context. A request that met no agent, or an agent that asks to come back,
// is tried again with exponential backoff and jitter. The agent's refusals are typed: use [errors.Is] with
// [ErrNoAvailableIPs] and the other errors of this package, or [errors.As] with [*APIError].
//
// A VM that was deallocated is quarantined until it was rebooted. [Client.ListAllocatedIPs] lists it with its
// quarantine, [Client.GetPoolStatus] counts it as in use, and the lookups no longer find it.
package vmpool
