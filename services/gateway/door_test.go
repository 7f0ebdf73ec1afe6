package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// ask calls the gateway as a pipeline does.
func (h *harness) ask(subject, data string) map[string]any {
	h.t.Helper()
	var doc map[string]any
	testkit.Eventually(h.t, patience, func() error { // the door opens a moment after the gateway starts
		r := h.bus.Caller().Call(subject, []byte(data), patience).Wait(context.Background())
		if r.Err != nil {
			return r.Err
		}
		doc = nil
		return json.Unmarshal(r.Data, &doc)
	})
	return doc
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestDoor(t *testing.T) {
	h := newHarness(t)
	asObject := `{"apiVersion": "weft/v1", "kind": "Job", "metadata": {"name": "%s", "queue": "acme", "id": "%s"}, "spec": {"command": ["a"]}}`
	for i, c := range []struct{ name, data string }{
		{"plain", `{"manifest": ` + quote(manifest("acme", "j0", testID(1), "")) + `}`},
		{"plain, manifest as object", `{"manifest": ` + fmt.Sprintf(asObject, "j1", testID(2)) + `}`},
		{"bare manifest in JSON", fmt.Sprintf(asObject, "j2", testID(3))},
		{"bare manifest in YAML", manifest("acme", "j3", testID(4), "")},
		{"CloudEvent", `{"specversion": "1.0", "id": "1", "source": "/airflow", "type": "submit", "traceparent": "` + trace + `", "data": {"manifest": ` + quote(manifest("acme", "j4", testID(5), "")) + `}}`},
		{"CloudEvent with a manifest as data", `{"specversion": "1.0", "id": "1", "source": "/a", "type": "submit", "data": ` + fmt.Sprintf(asObject, "j5", testID(6)) + `}`},
		{"CloudEvent with text as data", `{"specversion": "1.0", "id": "1", "source": "/a", "type": "submit", "data": ` + quote(manifest("acme", "j6", testID(7), "")) + `}`},
	} {
		doc := h.ask("weft.request.acme.submit", c.data)
		job, _ := doc["job"].(map[string]any)
		if job["id"] != testID(i+1) || job["phase"] != "queued" || job["queue"] != "acme" {
			t.Errorf("%s: %v", c.name, doc)
		}
		if c.name == "CloudEvent" {
			reqs := h.sched.requests()
			if got := reqs[len(reqs)-1]; got.GetTraceparent() != trace || got.GetBy() != "pipeline" || got.GetTenant() != "acme" {
				t.Errorf("request %v", got)
			}
		}
	}
	for _, c := range []struct{ subject, data, code, part string }{
		{"weft.request.beta.submit", manifest("acme", "x", "", ""), "PermissionDenied", "metadata.queue"},
		{"weft.request.acme.submit", manifest("acme", "x", "", ", gpu: 1"), "InvalidArgument", "spec.gpu (line 4)"},
		{"weft.request.acme.submit", "", "InvalidArgument", "manifest: empty"},
		{"weft.request.acme.submit", `{"specversion": "0.3", "data": {}}`, "InvalidArgument", "specversion"},
		{"weft.request.acme.submit", `{"specversion": "1.0"}`, "InvalidArgument", "data"},
		{"weft.request.acme.submit", strings.Repeat("x", 300_000), "InvalidArgument", "message"},
		{"weft.request.acme.fly", "{}", "InvalidArgument", "subject"},
		{"weft.request.beta.cancel", `{"job": "` + testID(1) + `"}`, "NotFound", testID(1)},
		{"weft.api.beta.job", `{"job": "acme/j0"}`, "NotFound", "acme/j0"},
	} {
		doc := h.ask(c.subject, c.data)
		e, _ := doc["error"].(map[string]any)
		msg, _ := e["message"].(string)
		if e["code"] != c.code || !strings.Contains(msg, c.part) || strings.Contains(msg, "\n") {
			t.Errorf("%s %.60s: %v", c.subject, c.data, doc)
		}
	}
	if doc := h.ask("weft.api.acme.job", `{"job": "j0"}`); doc["job"].(map[string]any)["id"] != testID(1) {
		t.Errorf("got %v", doc)
	}
	if doc := h.ask("weft.request.acme.cancel", `{"job": "j0"}`); doc["job"].(map[string]any)["phase"] != "cancelled" {
		t.Errorf("got %v", doc)
	}
}

func TestDoorHistoryAndFeed(t *testing.T) {
	h := newHarness(t)
	running := func(n int) { // every other event is of another tenant
		id := testID(n)
		h.event("acme", "attempt-running", id, "x", weftv1.AttemptRunning_builder{Job: &id, Attempt: new(uint32(n))}.Build())
		h.event("beta", "attempt-running", id, "x", weftv1.AttemptRunning_builder{Job: &id, Attempt: new(uint32(n))}.Build())
	}
	for n := range 5 {
		running(n)
	}
	var got []string
	cursor, more := "0", true
	for pages := 0; more; pages++ {
		doc := h.ask("weft.api.acme.events", `{"after": `+cursor+`, "limit": 2}`)
		for _, ev := range doc["events"].([]any) {
			e := ev.(map[string]any)
			got = append(got, e["subject"].(string)[25:]+"@"+e["weftcursor"].(string))
		}
		cursor, more = fmt.Sprint(doc["cursor"]), doc["more"].(bool)
		if pages > 3 {
			t.Fatal("the pages do not end")
		}
	}
	if s := strings.Join(got, " "); s != "0@1 1@3 2@5 3@7 4@9" || cursor != "10" {
		t.Errorf("got %s, cursor %s", s, cursor)
	}
	if doc := h.ask("weft.api.acme.events", `{"job": "`+testID(3)+`"}`); len(doc["events"].([]any)) != 1 {
		t.Errorf("got %v", doc)
	}
	sub, err := h.bus.Caller().Serve("weft.event.acme.>", "")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	deadline := time.After(patience)
	for n := 10; ; n++ {
		running(n) // the feed may begin a little later than the first one
		select {
		case <-sub.Wake():
		case <-deadline:
			t.Fatal("no event came")
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	r := sub.Next(1)[0]
	var ev map[string]any
	if err := json.Unmarshal(r.Data, &ev); err != nil {
		t.Fatal(err)
	}
	job := ev["subject"].(string)
	if r.Subject != "weft.event.acme."+job+".attempt-running" || ev["wefttenant"] != "acme" || len(r.Header) != 0 {
		t.Errorf("%s %v: %s", r.Subject, r.Header, r.Data)
	}
}
