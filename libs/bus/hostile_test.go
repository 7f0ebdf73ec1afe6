package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/testkit"
)

const patience = 15 * time.Second

// The server logs every violation; here they are the point.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	testkit.Main(m)
}

// hostile is a client with a stolen password and the plain NATS library: nothing of ours restrains it.
func hostile(t *testing.T, s *bus.Embedded, r bus.Role) *nats.Conn {
	t.Helper()
	user, pw, err := s.Credentials(r)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.URL(), nats.UserInfo(user, pw), nats.CustomInboxPrefix(bus.InboxPrefix(r)),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// refused says whether the server's newest complaint is about this subject.
func refused(t *testing.T, nc *nats.Conn, what, subject string) {
	t.Helper()
	if err := nc.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	err := nc.LastError()
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "permissions violation for "+what+" to \""+strings.ToLower(subject)+"\"") {
		t.Errorf("%s to %s was not refused: %v", what, subject, err)
	}
}

func refusedPublish(t *testing.T, nc *nats.Conn, subjects ...string) {
	t.Helper()
	for _, s := range subjects {
		if err := nc.PublishRequest(s, nc.NewInbox(), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		refused(t, nc, "publish", s)
	}
}

func refusedSubscribe(t *testing.T, nc *nats.Conn, subjects ...string) {
	t.Helper()
	for _, s := range subjects {
		if _, err := nc.SubscribeSync(s); err != nil {
			t.Fatal(err)
		}
		refused(t, nc, "subscription", s)
	}
}

func messages(t *testing.T, c *bus.Conn, stream string) uint64 {
	t.Helper()
	s, err := c.JS().Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func startBus(t *testing.T) (*bus.Embedded, *testkit.EmbeddedBus) {
	t.Helper()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: t.TempDir(), Nodes: []string{"n1", "n2"}, Tenants: []string{"acme", "beta"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	b := &testkit.EmbeddedBus{Server: srv}
	b.Core, b.Nodes, b.Door = b.Conn(t, bus.RoleCore), b.Conn(t, bus.RoleNodes), b.Conn(t, bus.RoleDoor)
	if err := bus.Apply(t.Context(), b.Conn(t, bus.RoleCoreInit), b.Conn(t, bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return srv, b
}

func TestHostileTenant(t *testing.T) {
	srv, b := startBus(t)
	acme := hostile(t, srv, bus.TenantRole("acme"))
	refusedPublish(t, acme,
		"weft.request.beta.submit", "weft.request.acme", "weft.request.acme.submit.x", "weft.api.beta.events",
		"weft.event.acme.job-placed", "weft.event.beta.job-placed", "weft.ledger", "weft.report.n1", "weft.assign.n1",
		"weft.rpc.gateway.secret", "weft.beat.n1", "_INBOX_beta.x", "_INBOX.x",
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET.LEDGER",
		"$JS.API.CONSUMER.MSG.NEXT.EVENTS.x", "$JS.API.DIRECT.GET.OBJ_BUNDLES", "$KV.x.y", "$O.BUNDLES.M.x", "$SYS.REQ.SERVER.PING")
	refusedSubscribe(t, acme,
		">", "weft.>", "weft.event.>", "weft.event.*.*", "weft.event.beta.*", "weft.request.acme.submit", "weft.request.*.*",
		"weft.api.acme.events", "_INBOX.>", "_INBOX_beta.>", "$JS.>", "$SYS.>")

	t.Run("what it may", func(t *testing.T) {
		s, err := busnats.NewCaller(b.Door).Serve("weft.request.*.*", "gateway")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		feed, err := acme.SubscribeSync("weft.event.acme.>")
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan *nats.Msg, 1)
		go func() {
			m, err := acme.Request("weft.request.acme.submit", []byte("spec"), patience)
			if err != nil {
				t.Error(err)
			}
			answer <- m
		}()
		<-s.Wake()
		s.Next(1)[0].Respond([]byte("job"), nil)
		if m := <-answer; m == nil || string(m.Data) != "job" {
			t.Fatalf("answer %+v", m)
		}
		if err := busnats.NewCaller(b.Door).Send(bus.Message{Subject: bus.SubjectDoorEvent("acme", "01jd", "job-placed"), Data: []byte("e")}); err != nil {
			t.Fatal(err)
		}
		if m, err := feed.NextMsg(patience); err != nil || string(m.Data) != "e" {
			t.Fatalf("event: %v", err)
		}
	})
	t.Run("a forged reply subject gets no answer", func(t *testing.T) {
		beta := hostile(t, srv, bus.TenantRole("beta"))
		victim, err := beta.SubscribeSync("weft.event.beta.>")
		if err != nil {
			t.Fatal(err)
		}
		inbox, err := beta.SubscribeSync("_INBOX_beta.>")
		if err != nil || beta.Flush() != nil {
			t.Fatal(err)
		}
		s, err := busnats.NewCaller(b.Door).Serve("weft.request.*.*", "gateway")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, reply := range []string{"weft.event.beta.01jd.job-failed", "_INBOX_beta.x"} {
			if err := acme.PublishRequest("weft.request.acme.submit", reply, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if err := acme.Publish("weft.request.acme.submit", []byte("last")); err != nil {
			t.Fatal(err)
		}
		for last := false; !last; { // one way, it comes after the forgeries
			<-s.Wake()
			for _, r := range s.Next(10) {
				r.Respond([]byte("forged"), nil)
				last = string(r.Data) == "last"
				if !last {
					t.Errorf("a request that asks for a forgery was handed on: %+v", r)
				}
			}
		}
		if b.Door.NC().Flush() != nil || beta.Flush() != nil {
			t.Fatal("flush")
		}
		for _, sub := range []*nats.Subscription{victim, inbox} {
			if n, _, _ := sub.Pending(); n != 0 {
				t.Errorf("%d forged messages on %s", n, sub.Subject)
			}
		}
	})
	if n := messages(t, b.Core, bus.StreamRequests) + messages(t, b.Core, bus.StreamLedger) + messages(t, b.Core, bus.StreamEvents); n != 0 {
		t.Errorf("a tenant got %d messages into CORE", n)
	}
}

func TestHostileNode(t *testing.T) {
	srv, b := startBus(t)
	n1 := hostile(t, srv, bus.NodeRole("n1"))
	refusedPublish(t, n1,
		"weft.report.n2", "weft.report.n1.x", "weft.save.n2", "weft.metric.n2", "weft.log.n2", "weft.beat.n2",
		"weft.assign.n1", "weft.assign.n2", "weft.ledger", "weft.request.acme.submit", "weft.rpc.scheduler.x",
		"_INBOX.x", "_INBOX_n2.x", "$O.BUNDLES.M.x", "$O.BUNDLES.C.x",
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.REPORTS", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.DELETE.REPORTS",
		"$JS.API.STREAM.UPDATE.ASSIGNMENTS", "$JS.API.STREAM.PURGE.ASSIGNMENTS", "$JS.API.STREAM.PURGE.REPORTS",
		"$JS.API.STREAM.MSG.GET.ASSIGNMENTS", "$JS.API.STREAM.MSG.DELETE.ASSIGNMENTS", "$JS.API.DIRECT.GET.ASSIGNMENTS",
		"$JS.API.CONSUMER.CREATE.ASSIGNMENTS", "$JS.API.CONSUMER.CREATE.ASSIGNMENTS.x", "$JS.API.CONSUMER.CREATE.ASSIGNMENTS.node-n1",
		"$JS.API.CONSUMER.CREATE.ASSIGNMENTS.node-n1.weft.assign.n2", "$JS.API.CONSUMER.CREATE.ASSIGNMENTS.node-n2.weft.assign.n1",
		"$JS.API.CONSUMER.CREATE.ASSIGNMENTS.node-n1.weft.assign.*", "$JS.API.CONSUMER.CREATE.REPORTS.node-n1.weft.report.n1",
		"$JS.API.CONSUMER.DURABLE.CREATE.ASSIGNMENTS.x", "$JS.API.CONSUMER.MSG.NEXT.ASSIGNMENTS.node-n2",
		"$JS.API.CONSUMER.DELETE.ASSIGNMENTS.node-n2", "$JS.API.CONSUMER.NAMES.ASSIGNMENTS", "$SYS.REQ.SERVER.PING")
	refusedSubscribe(t, n1,
		">", "weft.>", "weft.assign.n2", "weft.assign.*", "weft.assign.n1", "weft.report.*", "weft.beat.*", "_INBOX.>", "_INBOX_n2.>", "$JS.>")

	t.Run("a filter that lies", func(t *testing.T) {
		body, _ := json.Marshal(map[string]any{"stream_name": "ASSIGNMENTS", "config": map[string]any{
			"name": "node-n1", "filter_subject": "weft.assign.n2", "deliver_policy": "all", "ack_policy": "none",
		}})
		m, err := n1.Request("$JS.API.CONSUMER.CREATE.ASSIGNMENTS.node-n1.weft.assign.n1", body, patience)
		if err != nil || !strings.Contains(string(m.Data), `"err_code":10131`) {
			t.Fatalf("%v: %s", err, m.Data)
		}
	})
	t.Run("no reply subject reaches CORE", func(t *testing.T) {
		if err := n1.PublishRequest("weft.report.n1", "weft.ledger", []byte("r")); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func() bool { return messages(t, b.Nodes, bus.StreamReports) == 1 })
		if n := messages(t, b.Core, bus.StreamLedger); n != 0 {
			t.Errorf("%d messages forged into the ledger", n)
		}
	})
	t.Run("what it may", func(t *testing.T) {
		own := b.Conn(t, bus.NodeRole("n1"))
		for subject, stream := range map[string]string{
			bus.SubjectReport("n1"): bus.StreamReports, bus.SubjectSave("n1"): bus.StreamSaves,
			bus.SubjectMetric("n1"): bus.StreamMetrics, bus.SubjectLog("n1"): bus.StreamLogs,
		} {
			if _, err := busnats.NewOutbox(own, stream).Publish(t.Context(), bus.Message{Subject: subject, Data: []byte("x")}); err != nil {
				t.Errorf("%s: %v", subject, err)
			}
		}
		assign := busnats.NewOutbox(b.Nodes, bus.StreamAssignments)
		for _, n := range []string{"n2", "n1", "n2"} {
			_, at, _, err := assign.Get(t.Context(), bus.SubjectAssign(n))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := assign.Put(t.Context(), at, bus.Message{Subject: bus.SubjectAssign(n), Data: []byte("for " + n)}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // an agent that starts again finds its old consumer there
			ctx, stop := context.WithCancel(t.Context())
			in := busnats.NewInbox(ctx, own, bus.StreamAssignments, bus.SubjectAssign("n1"))
			testkit.Eventually(t, patience, func() bool {
				got, err := in.Next(t.Context(), 10)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) > 1 || len(got) == 1 && string(got[0].Data) != "for n1" {
					t.Fatalf("assignments %+v", got)
				}
				return len(got) == 1
			})
			stop()
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		if err := busnats.NewObjects(b.Nodes, bus.BucketBundles).Put(t.Context(), "b3-x", bytes.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		r, err := busnats.NewObjects(own, bus.BucketBundles).Get(t.Context(), "b3-x")
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(r); err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("bundle: %d bytes, %v", got.Len(), err)
		}
		s, err := busnats.NewCaller(b.Nodes).Serve("weft.beat.*", "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p := busnats.NewCaller(own).Call(bus.SubjectBeat("n1"), []byte("boot"), patience)
		<-s.Wake()
		s.Next(1)[0].Respond([]byte("term"), nil)
		if r := p.Wait(t.Context()); r.Err != nil || string(r.Data) != "term" {
			t.Fatalf("beat: %+v", r)
		}
	})
}

func TestServicesCannotChangeStreams(t *testing.T) {
	srv, b := startBus(t)
	for _, r := range []bus.Role{bus.RoleCore, bus.RoleNodes} {
		nc := hostile(t, srv, r)
		refusedPublish(t, nc, "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.UPDATE.LEDGER", "$JS.API.STREAM.DELETE.LEDGER",
			"$JS.API.STREAM.DELETE.REPORTS", "$JS.API.STREAM.MSG.DELETE.LEDGER")
	}
	init := b.Conn(t, bus.RoleCoreInit)
	if _, err := init.JS().Publish(t.Context(), bus.SubjectLedger, []byte("commit")); err != nil {
		t.Fatal(err)
	}
	s, err := init.JS().Stream(t.Context(), bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(t.Context(), 1); err == nil {
		t.Error("a commit was deleted")
	}
	if err := s.Purge(t.Context()); err != nil {
		t.Errorf("the leader could not purge below a snapshot: %v", err)
	}
}
