package natsledger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// clusterHarness is LEDGER on three replicas, made anew.
func clusterHarness(t testing.TB, c *testkit.BusCluster) ledgertest.Harness {
	c.Remake(t, bus.StreamLedger, "OBJ_"+bus.BucketSnapshots)
	servers := 0
	return ledgertest.Harness{
		Open: func(t testing.TB) ledger.Log { // each by another server
			servers++
			return open(t, c.Conn(t, bus.RoleCore, c.Servers()[servers%3]))
		},
		Force:     func(t testing.TB, data []byte) { force(t, c.Core, data) },
		Image:     func(t testing.TB) func() { return backup(t, c) },
		Trim:      func(t testing.TB, seq uint64) { trim(t, c.Core, seq) },
		Recreate:  func(t testing.TB) { c.Remake(t, bus.StreamLedger) },
		Snapshots: func(t testing.TB) ledger.Snapshots { return snapshots(t, c.Core) },
	}
}

// backup saves the ledger as `nats stream backup` does; restore puts it back as an operator would, who has nothing newer.
func backup(t testing.TB, c *testkit.BusCluster) (restore func()) {
	t.Helper()
	nc := c.Init(bus.AccountCore).NC()
	ask := func(subject string, body any) (r struct {
		Deliver string          `json:"deliver_subject"`
		Config  json.RawMessage `json:"config"`
		State   json.RawMessage `json:"state"`
		Error   json.RawMessage `json:"error"`
	}) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		m, err := nc.Request(subject, b, testkit.ClusterPatience)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(m.Data, &r); err != nil || r.Error != nil {
			t.Fatalf("%s: %s, %v", subject, m.Data, err)
		}
		return r
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection outlives it
	saved := ask("$JS.API.STREAM.SNAPSHOT."+bus.StreamLedger, map[string]any{"deliver_subject": inbox, "no_consumers": true})
	var chunks [][]byte
	for {
		m, err := sub.NextMsg(testkit.ClusterPatience)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			break
		}
		chunks = append(chunks, m.Data)
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() {
		t.Helper()
		if err := c.Init(bus.AccountCore).JS().DeleteStream(context.Background(), bus.StreamLedger); err != nil {
			t.Fatal(err)
		}
		to := ask("$JS.API.STREAM.RESTORE."+bus.StreamLedger, map[string]any{"config": saved.Config, "state": saved.State}).Deliver
		for _, chunk := range chunks {
			if m, err := nc.Request(to, chunk, testkit.ClusterPatience); err != nil || len(m.Data) != 0 {
				t.Fatalf("restore: %v, %v", m, err)
			}
		}
		if m, err := nc.Request(to, nil, testkit.ClusterPatience); err != nil || bytes.Contains(m.Data, []byte(`"error"`)) {
			t.Fatalf("restore: %v, %v", m, err)
		}
		c.Apply(t) // waits until it has a leader
	}
}

func TestContractR3(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers")
	}
	c := testkit.Cluster(t)
	ledgertest.Run(t, func(t testing.TB) ledgertest.Harness { return clusterHarness(t, c) })
}
