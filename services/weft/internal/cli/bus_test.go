package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
)

func weft(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app{out: &o, errOut: &e, in: strings.NewReader("")}
	code = a.run(t.Context(), args)
	return code, o.String(), e.String()
}

// What conf writes lets a server, the services and one agent in; init makes the streams that services verify.
func TestBusConfAndInit(t *testing.T) {
	data := t.TempDir()
	if code, out, errOut := weft(t, "bus", "conf", "--data", data, "--node", "n1", "--tenant", "vision"); code != ExitOK || !strings.Contains(out, "weft bus init") {
		t.Fatalf("exit %d: %s%s", code, out, errOut)
	}
	file := func(name string) string { return filepath.Join(data, "bus", name) }
	conf, err := os.ReadFile(file("accounts.conf"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := program.ReadCredentials(file("node-n1.json"))
	if err != nil || len(own) != 1 {
		t.Fatalf("a node's file holds %d users: %v", len(own), err)
	}
	for _, name := range []string{"accounts.conf", bus.UsersFile, "node-n1.json"} {
		if info, err := os.Stat(file(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if !strings.Contains(string(conf), own[bus.NodeRole("n1")]) || !strings.Contains(string(conf), string(bus.TenantRole("vision"))) {
		t.Error("accounts.conf lacks a user")
	}

	srv, err := bus.StartServer(bus.ServerConfig{Dir: filepath.Join(data, "bus"), Nodes: []string{"n1"}, Tenants: []string{"vision"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	services := program.Options{NATS: srv.URL(), Credentials: file(bus.UsersFile)}
	if _, err := program.Dial(t.Context(), "test", services, bus.RoleCore, bus.RoleNodes); err == nil || !strings.Contains(err.Error(), "weft bus init") {
		t.Fatalf("before init: %v", err)
	}
	for range 2 { // the second changes nothing
		if code, _, errOut := weft(t, "bus", "init", "--nats", srv.URL(), "--data", data); code != ExitOK {
			t.Fatalf("init: exit %d: %s", code, errOut)
		}
	}
	dial := func(o program.Options, roles ...bus.Role) {
		t.Helper()
		b, err := program.Dial(t.Context(), "test", o, roles...)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
	}
	dial(services, bus.RoleCore, bus.RoleNodes)
	dial(program.Options{NATS: srv.URL(), Credentials: file("node-n1.json")}, bus.NodeRole("n1"))
}

func TestBusMistakes(t *testing.T) {
	data := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"bus", "init", "--data", data}, ExitUsage, "weft bus serve"},
		{[]string{"bus", "conf", "--data", data, "--node", "No!"}, ExitUsage, "gpu-0"},
		{[]string{"bus", "serve", "--data", data, "--listen", "7402"}, ExitUsage, "127.0.0.1:7402"},
		{[]string{"bus", "serve", "--port", "1"}, ExitUsage, "weft bus serve --help"},
	} {
		if code, _, errOut := weft(t, c.args...); code != c.code || !strings.Contains(errOut, c.want) {
			t.Errorf("%v: exit %d, want %d: %s", c.args, code, c.code, errOut)
		}
	}
	if code, _, errOut := weft(t, "bus", "conf", "--data", data, "--node", "n1"); code != ExitOK {
		t.Fatal(errOut)
	}
	if code, _, errOut := weft(t, "bus", "init", "--data", data, "--nats", "nats://127.0.0.1:1"); code != ExitUnavailable || !strings.Contains(errOut, "--nats") {
		t.Errorf("nobody there: exit %d: %s", code, errOut)
	}
}

func TestBusServeEndsInOrder(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := &signalWriter{first: make(chan struct{})}
	a := &app{out: said, errOut: said}
	ended, data := make(chan int, 1), t.TempDir()
	go func() {
		ended <- a.run(ctx, []string{"bus", "serve", "--data", data, "--listen", "127.0.0.1:0"})
	}()
	select {
	case <-said.first:
	case code := <-ended:
		t.Fatalf("ended with %d", code)
	}
	// Without --node there is one that a first agent can be.
	if users, err := program.ReadCredentials(program.CredentialsIn(data)); err != nil || users[bus.NodeRole("dev-0")] == "" {
		t.Errorf("the file of users holds %d, without dev-0: %v", len(users), err)
	}
	cancel()
	if code := <-ended; code != ExitOK {
		t.Fatalf("exit %d", code)
	}
}

// signalWriter tells when something was said.
type signalWriter struct {
	first chan struct{}
	said  bool
}

func (w *signalWriter) Write(b []byte) (int, error) {
	if !w.said {
		w.said = true
		close(w.first)
	}
	return len(b), nil
}
