package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/metric"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/testkit"
	"github.com/weft-fabric/weft/services/telemetry"
)

// From an agent's own connection through a real METRICS stream to /metrics; a service that starts later reads what the
// stream still has.
func TestServeAgainstARealBus(t *testing.T) {
	b := testkit.Bus(t, "n1")
	creds := map[bus.Role]string{}
	for _, r := range []bus.Role{bus.RoleCore, bus.RoleNodes} {
		_, pw, err := b.Server.Credentials(r)
		if err != nil {
			t.Fatal(err)
		}
		creds[r] = pw
	}
	data, err := json.Marshal(creds)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out := busnats.NewOutbox(b.Conn(t, bus.NodeRole("n1")), bus.StreamMetrics)
	publish := func(seq uint64) {
		t.Helper()
		s := metric.NewSeries(metric.Power, 0, 1)
		s.Set(0, 300+float64(seq))
		m, err := proto.Marshal(metric.Encode(&metric.Batch{Node: "n1", Epoch: "e", Seq: seq, T0: time.Now().UnixNano(), DT: 1e9, Samples: 1, Series: []metric.Series{s}}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Publish(t.Context(), bus.Message{Subject: bus.SubjectMetric("n1"), Data: m}); err != nil {
			t.Fatal(err)
		}
	}
	publish(1)

	cfg := telemetry.DefaultConfig()
	cfg.Metrics, cfg.Settle = "127.0.0.1:0", 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr, ended := make(chan string, 1), make(chan error, 1)
	conns, err := program.Dial(ctx, "test", program.Options{NATS: b.Server.URL(), Credentials: file}, bus.RoleCore, bus.RoleNodes)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	go func() { ended <- serve(ctx, cfg, conns, func(a string) { addr <- a }) }()
	var url string
	select {
	case a := <-addr:
		url = "http://" + a + "/metrics"
	case err := <-ended:
		t.Fatal(err)
	}
	shows := func(lines ...string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() bool {
			resp, err := http.Get(url)
			if err != nil {
				return false
			}
			defer func() { _ = resp.Body.Close() }()
			page, _ := io.ReadAll(resp.Body)
			for _, l := range lines {
				if !strings.Contains(string(page), "\n"+l) {
					return false
				}
			}
			return true
		})
	}
	shows(`weft_gpu_power_watts{gpu="0",node="n1"} 301`, `weft_metric_batches_received_total{node="n1"} 1`)
	publish(2)
	publish(4)
	shows(`weft_gpu_power_watts{gpu="0",node="n1"} 304`, `weft_metric_batches_lost_total{node="n1"} 1`)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
