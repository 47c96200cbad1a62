//go:build agent

// The client against a real agent, which crates/cli/tests/vms/go_client.rs starts: on a real API server, with three
// real SSH servers as VMs, and with one allocation that the adaptor's own manager wrote before Berth came.
package vmpool

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"
)

func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run `cargo test -p berth --test vms go_client`", name)
	}
	return value
}

// until asks again until the condition holds; the test's own deadline ends it.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestARealAgent(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	socket, err := New(Config{Address: "unix://" + setting(t, "BERTH_TEST_SOCKET")})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := New(Config{
		Address: setting(t, "BERTH_TEST_URL"), TokenFile: setting(t, "BERTH_TEST_TOKEN_FILE"), Pool: "default",
	})
	if err != nil {
		t.Fatal(err)
	}
	status := func() [3]int {
		t.Helper()
		total, available, inUse, err := socket.GetPoolStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return [3]int{total, available, inUse}
	}

	t.Run("a live state", func(t *testing.T) {
		old := netip.MustParseAddr(setting(t, "BERTH_TEST_OLD_IP"))
		ip, found, err := socket.GetIPfromAllocationID(ctx, "old-8b317899")
		if err != nil || !found || ip != old {
			t.Fatal(ip, found, err)
		}
		id, found, err := tcp.GetAllocationIDfromIP(ctx, old)
		if err != nil || !found || id != "old-8b317899" {
			t.Fatal(id, found, err)
		}
		if got := status(); got != [3]int{3, 2, 1} {
			t.Fatal(got)
		}
	})

	var first netip.Addr
	t.Run("allocate", func(t *testing.T) {
		allocation, err := socket.Allocate(ctx, Applicant{AllocationID: "nginx-1", PodName: "nginx", PodNamespace: "default"})
		if err != nil {
			t.Fatal(err)
		}
		first = netip.MustParseAddr(allocation.IP)
		again, err := tcp.AllocateIP(ctx, "nginx-1", "nginx")
		if err != nil || again != first {
			t.Fatal(again, err, "the same ID gets the same VM")
		}
		second, err := tcp.AllocateIP(ctx, "nginx-2", "nginx")
		if err != nil || second == first {
			t.Fatal(second, err)
		}
		_, err = tcp.AllocateIP(ctx, "nginx-3", "nginx")
		if !errors.Is(err, ErrNoAvailableIPs) {
			t.Fatal(err)
		}
		all, err := tcp.ListAllocatedIPs(ctx)
		if err != nil || len(all) != 3 {
			t.Fatal(all, err)
		}
		listed := all["nginx-1"]
		if listed.IP != first.String() || listed.NodeName != "worker" || listed.PodName != "nginx" ||
			listed.PodNamespace != "default" || listed.Quarantine != nil || time.Since(listed.AllocatedAt) > time.Hour {
			t.Fatalf("%+v", listed)
		}
	})

	t.Run("refusals", func(t *testing.T) {
		if _, err := socket.AllocateIP(ctx, "two words", ""); !errors.Is(err, ErrInvalidRequest) {
			t.Error(err)
		}
		if _, found, err := socket.GetIPfromAllocationID(ctx, "nobody"); found || err != nil {
			t.Error(found, err)
		}
		if _, found, err := socket.GetAllocationIDfromIP(ctx, netip.MustParseAddr("192.0.2.1")); found || err != nil {
			t.Error(found, err)
		}
		gpu, err := New(Config{Address: "unix://" + setting(t, "BERTH_TEST_SOCKET"), Pool: "gpu"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gpu.AllocateIP(ctx, "a", ""); !errors.Is(err, ErrUnknownPool) {
			t.Error(err)
		}
		wrong := tokenFile(t, "a token that is not the agent's")
		stranger, err := New(Config{Address: setting(t, "BERTH_TEST_URL"), TokenFile: wrong})
		if err != nil {
			t.Fatal(err)
		}
		if err := stranger.RecoverState(ctx); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
	})

	t.Run("deallocate", func(t *testing.T) {
		if err := socket.DeallocateIP(ctx, "nginx-1"); err != nil {
			t.Fatal(err)
		}
		// The cleanup takes two seconds here: until then the VM is listed, in use, and not to be had.
		if _, err := socket.AllocateIP(ctx, "nginx-1", "nginx"); !errors.Is(err, ErrBeingCleaned) {
			t.Fatal(err)
		}
		if _, found, err := socket.GetIPfromAllocationID(ctx, "nginx-1"); found || err != nil {
			t.Fatal(found, err)
		}
		all, err := socket.ListAllocatedIPs(ctx)
		if err != nil || all["nginx-1"].Quarantine == nil || all["nginx-1"].Quarantine.By != "worker" {
			t.Fatalf("%+v %v", all, err)
		}
		if got := status(); got != [3]int{3, 0, 3} {
			t.Fatal(got)
		}
		until(t, "the VM is free again", func() bool { return status() == [3]int{3, 1, 2} })
		if err := socket.DeallocateIP(ctx, "nginx-1"); err != nil {
			t.Fatal("a repeat is no error", err)
		}
	})

	t.Run("delete by IP", func(t *testing.T) {
		// As peerpod-ctrl does for a PeerPod that an older adaptor wrote.
		if err := tcp.DeallocateInstance(ctx, setting(t, "BERTH_TEST_OLD_IP")); err != nil {
			t.Fatal(err)
		}
		until(t, "the old VM is free", func() bool { return status() == [3]int{3, 2, 1} })
		if err := tcp.DeallocateInstance(ctx, setting(t, "BERTH_TEST_OLD_IP")); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("recover", func(t *testing.T) {
		if err := socket.RecoverState(ctx); err != nil {
			t.Fatal(err)
		}
		if _, found, err := socket.GetIPfromAllocationID(ctx, "nginx-2"); found || err != nil {
			t.Fatal(found, err)
		}
		until(t, "this node's VMs are free", func() bool { return status() == [3]int{3, 3, 0} })
	})

	t.Run("user data", func(t *testing.T) {
		if _, err := socket.AllocateIP(ctx, "kept", "nginx"); err != nil {
			t.Fatal(err)
		}
		if err := socket.PutUserData(ctx, "kept", []byte("#cloud-config\n")); err != nil {
			t.Fatal(err)
		}
	})
}

// The agent's only VM accepts connections and says nothing.
func TestAHungVM(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := New(Config{Address: "unix://" + setting(t, "BERTH_TEST_SOCKET")})
	if err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	go func() {
		_, err := c.AllocateIP(ctx, "hung", "nginx")
		outcome <- err
	}()
	var checked IPAllocation
	until(t, "the VM is being checked", func() bool {
		all, err := c.ListAllocatedIPs(ctx)
		checked = all["hung"]
		return err == nil && checked.Checking != nil
	})
	if checked.Checking.By != "worker" {
		t.Errorf("%+v", checked.Checking)
	}
	if ip, found, err := c.GetIPfromAllocationID(ctx, "hung"); found || err != nil {
		t.Fatal(ip, found, err, "a VM that is not ready")
	}
	ip := netip.MustParseAddr(checked.IP)
	if id, found, err := c.GetAllocationIDfromIP(ctx, ip); found || err != nil {
		t.Fatal(id, found, err)
	}
	if err := c.DeallocateByIP(ctx, ip); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; !errors.Is(err, ErrDeallocated) {
		t.Fatal(err)
	}
}
