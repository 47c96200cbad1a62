// Google's own Go client against a server that claims to be Google Cloud: the calls that Berth makes, and what the API is
// known to refuse. Usage: gce ENDPOINT TOKEN PROJECT REGION SUBNET ZONE INSTANCE; each scenario that holds prints a line.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/networkconnectivity/v1"
	"google.golang.org/api/option"
)

type world struct {
	compute *compute.Service
	ranges  *networkconnectivity.Service

	project, region, subnet, zone, instance string
}

func main() {
	if len(os.Args) != 8 {
		fail(errors.New("usage: gce ENDPOINT TOKEN PROJECT REGION SUBNET ZONE INSTANCE"))
	}
	ctx := context.Background()
	token := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: os.Args[2]})
	client := option.WithHTTPClient(oauth2.NewClient(ctx, token))
	w := world{project: os.Args[3], region: os.Args[4], subnet: os.Args[5], zone: os.Args[6], instance: os.Args[7]}
	var err error
	if w.compute, err = compute.NewService(ctx, client, option.WithEndpoint(os.Args[1]+"/compute/v1/")); err != nil {
		fail(err)
	}
	if w.ranges, err = networkconnectivity.NewService(ctx, client, option.WithEndpoint(os.Args[1]+"/")); err != nil {
		fail(err)
	}
	scenarios := []struct {
		name string
		run  func() error
	}{
		{"instances", w.instances},
		{"conflicts", w.conflicts},
		{"empty list", w.emptyList},
		{"repeats", w.repeats},
		{"addresses", w.addresses},
		{"ranges", w.internalRanges},
	}
	for _, scenario := range scenarios {
		if err := scenario.run(); err != nil {
			fail(fmt.Errorf("%s: %w", scenario.name, err))
		}
		fmt.Println("ok", scenario.name)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (w *world) nic() (*compute.NetworkInterface, error) {
	found, err := w.compute.Instances.Get(w.project, w.zone, w.instance).Do()
	if err != nil {
		return nil, err
	}
	if len(found.NetworkInterfaces) != 1 || found.NetworkInterfaces[0].Name != "nic0" {
		return nil, fmt.Errorf("nic0 is missing: %v", found.NetworkInterfaces)
	}
	return found.NetworkInterfaces[0], nil
}

// update changes nic0 and waits for the operation's end.
func (w *world) update(change *compute.NetworkInterface) error {
	begun, err := w.compute.Instances.UpdateNetworkInterface(w.project, w.zone, w.instance, "nic0", change).Do()
	if err != nil {
		return err
	}
	return w.waitZone(begun.Name)
}

func (w *world) waitZone(name string) error {
	for {
		operation, err := w.compute.ZoneOperations.Wait(w.project, w.zone, name).Do()
		if err != nil {
			return err
		}
		if operation.Status == "DONE" {
			return outcome(operation)
		}
	}
}

func (w *world) waitRegion(name string) error {
	for {
		operation, err := w.compute.RegionOperations.Wait(w.project, w.region, name).Do()
		if err != nil {
			return err
		}
		if operation.Status == "DONE" {
			return outcome(operation)
		}
	}
}

func outcome(operation *compute.Operation) error {
	if operation.Error != nil && len(operation.Error.Errors) > 0 {
		return fmt.Errorf("%s: %s", operation.Error.Errors[0].Code, operation.Error.Errors[0].Message)
	}
	return nil
}

func aliases(nic *compute.NetworkInterface) string {
	var all []string
	for _, alias := range nic.AliasIpRanges {
		all = append(all, alias.SubnetworkRangeName+"="+alias.IpCidrRange)
	}
	return strings.Join(all, " ")
}

func refused(err error, code int, text string) error {
	var answer *googleapi.Error
	if !errors.As(err, &answer) || answer.Code != code || !strings.Contains(answer.Message, text) {
		return fmt.Errorf("%d %q was expected, not %v", code, text, err)
	}
	return nil
}

func (w *world) instances() error {
	nic, err := w.nic()
	if err != nil {
		return err
	}
	own := nic.AliasIpRanges
	add := append(own, &compute.AliasIpRange{IpCidrRange: "10.4.200.7/32", SubnetworkRangeName: "pods"})
	if err := w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: add}); err != nil {
		return err
	}
	after, err := w.nic()
	if err != nil {
		return err
	}
	if after.Fingerprint == nic.Fingerprint || !strings.Contains(aliases(after), "pods=10.4.200.7/32") {
		return fmt.Errorf("it was not added: %s", aliases(after))
	}
	if err := w.update(&compute.NetworkInterface{Fingerprint: after.Fingerprint, AliasIpRanges: own}); err != nil {
		return err
	}
	last, err := w.nic()
	if err != nil {
		return err
	}
	if aliases(last) != aliases(nic) {
		return fmt.Errorf("it was not removed: %s", aliases(last))
	}
	_, err = w.compute.Instances.Get(w.project, w.zone, "no-such-vm").Do()
	return refused(err, 404, "was not found")
}

func (w *world) conflicts() error {
	nic, err := w.nic()
	if err != nil {
		return err
	}
	own := nic.AliasIpRanges
	add := append(own, &compute.AliasIpRange{IpCidrRange: "10.4.200.8/32", SubnetworkRangeName: "pods"})
	if err := w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: add}); err != nil {
		return err
	}
	stale := w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: own})
	if err := refused(stale, 412, "fingerprint"); err != nil {
		return err
	}
	if nic, err = w.nic(); err != nil {
		return err
	}
	both := append(own[:len(own):len(own)], &compute.AliasIpRange{IpCidrRange: "10.4.200.9/32", SubnetworkRangeName: "pods"})
	mixed := w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: both})
	if err := refused(mixed, 400, "Cannot simultaneously add and remove"); err != nil {
		return err
	}
	bare := w.update(&compute.NetworkInterface{AliasIpRanges: own})
	if err := refused(bare, 400, "fingerprint"); err != nil {
		return err
	}
	return w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: own})
}

// The client omits an empty list unless it is told to send it, and an absent list leaves the aliases as they are.
func (w *world) emptyList() error {
	nic, err := w.nic()
	if err != nil {
		return err
	}
	own := nic.AliasIpRanges
	if err := w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: nil}); err != nil {
		return err
	}
	same, err := w.nic()
	if err != nil {
		return err
	}
	if aliases(same) != aliases(nic) {
		return fmt.Errorf("an absent list changed them to %q", aliases(same))
	}
	clear := &compute.NetworkInterface{Fingerprint: same.Fingerprint, ForceSendFields: []string{"AliasIpRanges"}}
	if err := w.update(clear); err != nil {
		return err
	}
	cleared, err := w.nic()
	if err != nil {
		return err
	}
	if len(cleared.AliasIpRanges) != 0 {
		return fmt.Errorf("an empty list left %q", aliases(cleared))
	}
	return w.update(&compute.NetworkInterface{Fingerprint: cleared.Fingerprint, AliasIpRanges: own})
}

// A repeat with the same requestId is not carried out again, though its fingerprint is stale by then.
func (w *world) repeats() error {
	nic, err := w.nic()
	if err != nil {
		return err
	}
	own := nic.AliasIpRanges
	add := append(own, &compute.AliasIpRange{IpCidrRange: "10.4.200.10/32", SubnetworkRangeName: "pods"})
	change := &compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: add}
	const id = "1f0c9a52-7a34-4a1a-9a0e-5a1f7a0b3c11"
	call := w.compute.Instances.UpdateNetworkInterface(w.project, w.zone, w.instance, "nic0", change).RequestId(id)
	first, err := call.Do()
	if err != nil {
		return err
	}
	if err := w.waitZone(first.Name); err != nil {
		return err
	}
	again, err := call.Do()
	if err != nil {
		return err
	}
	if again.Name != first.Name || again.ClientOperationId != id {
		return fmt.Errorf("the repeat is %s, the first was %s", again.Name, first.Name)
	}
	if nic, err = w.nic(); err != nil {
		return err
	}
	return w.update(&compute.NetworkInterface{Fingerprint: nic.Fingerprint, AliasIpRanges: own})
}

func (w *world) addresses() error {
	wanted := &compute.Address{
		Name: "berth-10-128-0-77", Address: "10.128.0.77", AddressType: "INTERNAL", Purpose: "GCE_ENDPOINT",
		Subnetwork: fmt.Sprintf("projects/%s/regions/%s/subnetworks/%s", w.project, w.region, w.subnet),
	}
	begun, err := w.compute.Addresses.Insert(w.project, w.region, wanted).Do()
	if err != nil {
		return err
	}
	if err := w.waitRegion(begun.Name); err != nil {
		return err
	}
	found, err := w.compute.Addresses.Get(w.project, w.region, wanted.Name).Do()
	if err != nil {
		return err
	}
	if found.Address != wanted.Address || found.Status != "RESERVED" {
		return fmt.Errorf("it is %s %s", found.Address, found.Status)
	}
	list, err := w.compute.Addresses.List(w.project, w.region).Do()
	if err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("%d addresses are listed", len(list.Items))
	}
	if begun, err = w.compute.Addresses.Delete(w.project, w.region, wanted.Name).Do(); err != nil {
		return err
	}
	if err := w.waitRegion(begun.Name); err != nil {
		return err
	}
	_, err = w.compute.Addresses.Get(w.project, w.region, wanted.Name).Do()
	return refused(err, 404, "was not found")
}

func (w *world) finish(operation *networkconnectivity.GoogleLongrunningOperation, err error) error {
	for err == nil && !operation.Done {
		time.Sleep(20 * time.Millisecond)
		operation, err = w.ranges.Projects.Locations.Operations.Get(operation.Name).Do()
	}
	if err == nil && operation.Error != nil {
		err = errors.New(operation.Error.Message)
	}
	return err
}

func (w *world) setRanges(change *compute.Subnetwork) error {
	begun, err := w.compute.Subnetworks.Patch(w.project, w.region, w.subnet, change).Do()
	if err != nil {
		return err
	}
	return w.waitRegion(begun.Name)
}

// An internal range, a secondary range that is linked to it, and the way back: a user blocks the deletion.
func (w *world) internalRanges() error {
	ranges := w.ranges.Projects.Locations.InternalRanges
	parent := fmt.Sprintf("projects/%s/locations/global", w.project)
	name := parent + "/internalRanges/moving"
	subnet, err := w.compute.Subnetworks.Get(w.project, w.region, w.subnet).Do()
	if err != nil {
		return err
	}
	wanted := &networkconnectivity.InternalRange{
		Network: fmt.Sprintf("projects/%s/global/networks/default", w.project), Usage: "FOR_VPC", Peering: "FOR_SELF",
		PrefixLength: 20, TargetCidrRange: []string{"10.64.0.0/12"},
	}
	if err := w.finish(ranges.Create(parent, wanted).InternalRangeId("moving").Do()); err != nil {
		return err
	}
	if _, err := ranges.Create(parent, wanted).InternalRangeId("moving").Do(); refused(err, 409, "already exists") != nil {
		return refused(err, 409, "already exists")
	}
	reserved, err := ranges.Get(name).Do()
	if err != nil {
		return err
	}
	before := subnet.SecondaryIpRanges
	link := &compute.SubnetworkSecondaryRange{RangeName: "moving", ReservedInternalRange: reserved.Name}
	change := &compute.Subnetwork{Fingerprint: subnet.Fingerprint, SecondaryIpRanges: append(before[:len(before):len(before)], link)}
	if err := w.setRanges(change); err != nil {
		return err
	}
	if err := refused(w.setRanges(change), 412, "fingerprint"); err != nil {
		return err
	}
	if subnet, err = w.compute.Subnetworks.Get(w.project, w.region, w.subnet).Do(); err != nil {
		return err
	}
	last := subnet.SecondaryIpRanges[len(subnet.SecondaryIpRanges)-1]
	if last.RangeName != "moving" || last.IpCidrRange != reserved.IpCidrRange {
		return fmt.Errorf("the last range is %s %s", last.RangeName, last.IpCidrRange)
	}
	if err := w.finish(ranges.Delete(name).Do()); err == nil {
		return errors.New("a range that is in use was deleted")
	}
	change = &compute.Subnetwork{Fingerprint: subnet.Fingerprint, SecondaryIpRanges: before}
	if err := w.setRanges(change); err != nil {
		return err
	}
	if err := w.finish(ranges.Delete(name).Do()); err != nil {
		return err
	}
	_, err = ranges.Get(name).Do()
	return refused(err, 404, "was not found")
}
