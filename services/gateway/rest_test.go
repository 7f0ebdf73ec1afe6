package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func (h *harness) rest(who, method, path string, body string) (int, map[string]any, string) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.as(who), method, "http://"+h.gw.RESTAddr()+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+h.tokens[who])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	var doc map[string]any
	_ = json.Unmarshal(b, &doc)
	return resp.StatusCode, doc, string(b)
}

func TestREST(t *testing.T) {
	h := newHarness(t)
	body, _ := json.Marshal(map[string]any{"manifest": manifest("acme/vision", "x", testID(1), ", gpus: 1")})
	code, doc, text := h.rest("ann", "POST", "/v1/jobs", string(body))
	if job, _ := doc["job"].(map[string]any); code != 200 || job["id"] != testID(1) || job["submitted_ns"] == nil {
		t.Fatalf("%d: %s", code, text)
	}
	for _, path := range []string{"/v1/jobs/" + testID(1), "/v1/jobs/" + url.PathEscape("acme/vision/x")} {
		code, doc, text = h.rest("ann", "GET", path, "")
		if job, _ := doc["job"].(map[string]any); code != 200 || job["phase"] != "queued" {
			t.Errorf("%s: %d: %s", path, code, text)
		}
	}
	if code, doc, text = h.rest("ann", "GET", "/v1/jobs?queue=acme&page_size=1", ""); code != 200 || doc["total"] != 1.0 {
		t.Errorf("%d: %s", code, text)
	}
	if code, doc, text = h.rest("bob", "GET", "/v1/jobs", ""); code != 200 || doc["jobs"] == nil {
		t.Errorf("an empty list is not there: %d: %s", code, text)
	}
	for _, c := range []struct {
		who, method, path, body string
		code                    int
		part                    string
	}{
		{"", "GET", "/v1/jobs", "", 401, "Authorization"},
		{"bob", "GET", "/v1/jobs/" + testID(1), "", 404, "weft ps"},
		{"ann", "GET", "/v1/jobs?phase=x", "", 400, "phase"},
		{"vera", "POST", "/v1/jobs/" + testID(1) + ":cancel", "{}", 403, "may only read"},
		{"ann", "POST", "/v1/jobs", `{"manifst": ""}`, 400, "manifst"},
		{"ann", "POST", "/v1/jobs", `{"manifest": "` + strings.Repeat("x", 2<<20) + `"}`, 400, "too large"},
		{"ann", "GET", "/v1/nowhere", "", 404, "/openapi.json"},
		{"ann", "DELETE", "/v1/jobs", "", 405, "DELETE"},
		{"ann", "GET", "/v1/jobs/" + testID(1) + ":explain", "", 503, "allocator"},
		{"vera", "PUT", "/v1/bundles/" + digest([]byte("x")), "x", 403, "may only read"},
		{"", "PUT", "/v1/bundles/" + digest([]byte("x")), "x", 401, "Authorization"},
		{"ann", "PUT", "/v1/bundles/" + digest([]byte("x")), "y", 400, "digest"},
	} {
		code, doc, text := h.rest(c.who, c.method, c.path, c.body)
		msg, _ := doc["message"].(string)
		if code != c.code || !strings.Contains(msg, c.part) {
			t.Errorf("%s %s: %d: %s", c.method, c.path, code, text)
		}
	}
	big := bytes.Repeat([]byte("weft"), 300_000) // more than one message may have
	if code, doc, text = h.rest("ann", "PUT", "/v1/bundles/"+digest(big), string(big)); code != 200 || doc["existed"] != false {
		t.Errorf("%d: %s", code, text)
	}
	if code, doc, text = h.rest("ann", "PUT", "/v1/bundles/"+digest(big), string(big)); code != 200 || doc["existed"] != true {
		t.Errorf("%d: %s", code, text)
	}
	h.event("acme", "job-succeeded", testID(1), "x", weftv1.JobSucceeded_builder{Job: new(testID(1))}.Build())
	code, doc, text = h.rest("ann", "GET", "/v1/events", "")
	if ev, _ := doc["result"].(map[string]any); code != 200 || ev["line"] != "acme/x succeeded" {
		t.Errorf("%d: %s", code, text)
	}
	if code, _, text = h.rest("ann", "POST", "/v1/jobs/"+testID(1)+":cancel", "{}"); code != 200 {
		t.Errorf("%d: %s", code, text)
	}
	if code, doc, text = h.rest("", "GET", "/openapi.json", ""); code != 200 || doc["swagger"] != "2.0" {
		t.Errorf("%d: %.200s", code, text)
	}
	// The description uses the words of the answers.
	for _, word := range []string{`"/v1/jobs/{job}:cancel"`, `"page_token"`, `"submitted_ns"`} {
		if !strings.Contains(text, word) {
			t.Errorf("openapi.json does not name %s", word)
		}
	}
	if code, _, text = h.rest("", "GET", "/healthz", ""); code != 200 || text != "ok\n" {
		t.Errorf("%d: %s", code, text)
	}
}

func TestConfig(t *testing.T) {
	ok := DefaultConfig()
	ok.Tokens = "x"
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for part, change := range map[string]func(*Config){
		"remote: true": func(c *Config) { c.GRPC = "0.0.0.0:7400" },
		"rest address": func(c *Config) { c.REST = "10.1.2.3:80" },
		"host:port":    func(c *Config) { c.GRPC = "localhost" },
		"token file":   func(c *Config) { c.Tokens = "" },
		"fence":        func(c *Config) { c.Fence = -1 },
		"decide_wait":  func(c *Config) { c.DecideWait = 0 },
		"burst":        func(c *Config) { c.Burst = 1 },
	} {
		c := ok
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	remote := ok
	remote.GRPC, remote.REST, remote.Remote = "0.0.0.0:7400", "[::]:7401", true
	if err := remote.Validate(); err != nil {
		t.Error(err)
	}
	if _, err := New(ok, Deps{}); err == nil || !strings.Contains(err.Error(), "weft-gateway token") {
		t.Errorf("without a token file: %v", err)
	}
}

func TestBusyAddress(t *testing.T) {
	h := newHarness(t)
	c := h.gw.cfg
	c.REST = h.gw.RESTAddr()
	if _, err := New(c, h.gw.deps); err == nil || !strings.Contains(err.Error(), "another by the setting rest") {
		t.Errorf("got %v", err)
	}
}
