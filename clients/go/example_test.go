package vmpool_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"

	vmpool "berth.dev/vmpool"
)

// provider is what an adaptor needs of its BYOM provider. docs/vms.md shows these two methods.
type provider struct{ pool *vmpool.Client }

// CreateInstance allocates a VM and writes its user data. The agent has the SSH key; the adaptor needs none.
func (p *provider) CreateInstance(ctx context.Context, podName, sandboxID string, userData []byte) (id string, ip netip.Addr, err error) {
	id = podName + "-" + sandboxID
	ip, err = p.pool.AllocateIP(ctx, id, podName)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("failed to allocate IP from pool: %w", err)
	}
	if err := p.pool.PutUserData(ctx, id, userData); err != nil {
		return "", netip.Addr{}, errors.Join(err, p.pool.DeallocateIP(ctx, id))
	}
	// The instance ID is the allocation ID: an IP belongs to another pod tomorrow.
	return id, ip, nil
}

// DeleteInstance takes an allocation ID, or an IP out of a PeerPod that an older adaptor wrote.
func (p *provider) DeleteInstance(ctx context.Context, instanceID string) error {
	return p.pool.DeallocateInstance(ctx, instanceID)
}

func Example() {
	pool, err := vmpool.New(vmpool.Config{Address: "unix:///run/berth-vms/berth.sock", UserAgent: "cloud-api-adaptor"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	// The pods of this node died with the adaptor's last process.
	if err := pool.RecoverState(ctx); err != nil {
		log.Fatal(err)
	}
	p := &provider{pool}
	id, ip, err := p.CreateInstance(ctx, "nginx", "8b317899", []byte("#cloud-config\n"))
	if errors.Is(err, vmpool.ErrNoAvailableIPs) {
		log.Fatal("add VMs to the pool, or wait for one")
	}
	fmt.Println(id, ip, err)
	if err := p.DeleteInstance(ctx, id); err != nil {
		log.Fatal(err)
	}
}
