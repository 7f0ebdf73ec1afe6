package bus

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func start(t *testing.T, c ServerConfig) *Embedded {
	t.Helper()
	s, err := StartServer(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func dial(t *testing.T, s *Embedded, r Role) *Conn {
	t.Helper()
	c, err := s.Conn(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestServerStartsFastSyncsAlwaysAndListensOnLoopback(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	s := start(t, ServerConfig{Dir: dir})
	took := time.Since(began)
	t.Logf("started in %v", took)
	if took > time.Second {
		t.Errorf("start took %v", took)
	}
	if !s.srv.JetStreamConfig().SyncAlways {
		t.Error("JetStream acknowledges before it syncs")
	}
	host, _, err := net.SplitHostPort(strings.TrimPrefix(s.URL(), "nats://"))
	if err != nil || host != "127.0.0.1" {
		t.Errorf("listens on %s, %v", s.URL(), err)
	}
	if _, err := nats.Connect(s.URL()); err == nil {
		t.Error("a client without a password was let in")
	}
	for name, want := range map[string]bool{AccountCore: true, AccountNodes: true, AccountDoor: false} {
		if a, err := s.srv.LookupAccount(name); err != nil || a.JetStreamEnabled() != want {
			t.Errorf("account %s: %v, JetStream is not %v", name, err, want)
		}
	}
}

func TestPasswordsStayAndAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	s := start(t, ServerConfig{Dir: dir, Nodes: []string{"n1", "n2"}})
	_, first, err := s.Credentials(NodeRole("n1"))
	if err != nil || len(first) < 20 {
		t.Fatalf("password %q, %v", first, err)
	}
	_, other, _ := s.Credentials(NodeRole("n2"))
	if first == other {
		t.Fatal("two users have one password")
	}
	s.Shutdown()
	file := filepath.Join(dir, "bus-users.json")
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st.Mode(), err)
	}
	s = start(t, ServerConfig{Dir: dir, Nodes: []string{"n1", "n3"}})
	if _, again, _ := s.Credentials(NodeRole("n1")); again != first {
		t.Fatal("a restart changed a password")
	}
	if _, _, err := s.Credentials(NodeRole("n2")); err == nil {
		t.Fatal("a node that is not named any more has credentials")
	}
	if nc, err := nats.Connect(s.URL(), nats.UserInfo("node-n2", other)); err == nil {
		nc.Close()
		t.Fatal("a node that is not named any more was let in")
	}
	s.Shutdown()
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartServer(ServerConfig{Dir: dir}); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Fatalf("damaged file: %v", err)
	}
}

func TestServerRefusesWhatCannotWork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, p, _ := net.SplitHostPort(l.Addr().String())
	port, _ := strconv.Atoi(p)
	if _, err := StartServer(ServerConfig{Dir: t.TempDir(), Port: port}); err == nil || !strings.Contains(err.Error(), "another port") {
		t.Fatalf("busy port: %v", err)
	}
	for _, n := range []string{"", "N1", "a.b", "a>", "*", `a"b`} {
		if _, err := StartServer(ServerConfig{Dir: t.TempDir(), Nodes: []string{n}}); err == nil {
			t.Fatalf("node %q was taken", n)
		}
	}
}

func TestApplyAndVerify(t *testing.T) {
	dir := t.TempDir()
	s := start(t, ServerConfig{Dir: dir})
	core, nodes := dial(t, s, RoleCoreInit), dial(t, s, RoleNodesInit)
	verify := func() error { return Verify(t.Context(), dial(t, s, RoleCore), dial(t, s, RoleNodes)) }
	if err := verify(); err == nil || !strings.Contains(err.Error(), "weft bus init") {
		t.Fatalf("an empty bus: %v", err)
	}
	began := time.Now()
	for range 2 { // the second time changes nothing
		if err := Apply(t.Context(), core, nodes, ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Logf("applied in %v", time.Since(began))
		began = time.Now()
		if err := verify(); err != nil {
			t.Fatal(err)
		}
	}
	// Weaker: somebody lets the queue of requests drop the oldest.
	st, err := core.JS().Stream(t.Context(), StreamFindings)
	if err != nil {
		t.Fatal(err)
	}
	cfg := st.CachedInfo().Config
	cfg.MaxAge = time.Hour
	if _, err := core.JS().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := verify(); err == nil || !strings.Contains(err.Error(), "max age is 1h0m0s") {
		t.Fatalf("a weaker stream: %v", err)
	}
	if err := Apply(t.Context(), core, nodes, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := verify(); err != nil {
		t.Fatal(err)
	}
	// Newer: neither touched nor used.
	cfg = st.CachedInfo().Config
	cfg.Metadata = map[string]string{versionKey: strconv.Itoa(ConfigVersion + 1)}
	if _, err := core.JS().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"verify": verify(), "apply": Apply(t.Context(), core, nodes, ApplyOptions{})} {
		if err == nil || !strings.Contains(err.Error(), "upgrade this program") {
			t.Fatalf("%s of a newer stream: %v", what, err)
		}
	}
}

func TestDeclarations(t *testing.T) {
	var store, memory int64
	for _, d := range declarations {
		if !d.DiscardOld && d.MaxAge != 0 {
			t.Errorf("%s refuses when full and expires: an input could vanish unread", d.Name)
		}
		if d.Memory {
			memory += d.MaxBytes
		} else {
			store += d.MaxBytes
		}
		if got, ok := Declared(d.Name); !ok || got.Account != d.Account {
			t.Errorf("Declared(%s) = %+v", d.Name, got)
		}
		if d.Rebuildable && d.config(3).PersistMode != 0 {
			t.Errorf("%s: the server refuses async on replicas", d.Name)
		}
	}
	if store > storeBytes || memory > memoryBytes {
		t.Errorf("limits reserve %d and %d bytes, the server grants %d and %d", store, memory, storeBytes, memoryBytes)
	}
	for name, want := range map[string]Declaration{
		StreamLedger: {NoDelete: true}, StreamRequests: {MaxBytes: 1}, StreamReports: {MaxBytes: 1}, StreamSaves: {MaxBytes: 1},
	} {
		d, _ := Declared(name)
		if d.NoDelete != want.NoDelete || d.DiscardOld || d.MaxAge != 0 || (d.MaxBytes > 0) != (want.MaxBytes > 0) || d.Rebuildable || d.Memory {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestSubjectMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.*", "a.b", true}, {"a.>", "a.b.c", true}, {">", "a", true}, {"a.*.c", "a.b.c", true},
		{"a.b", "a", false}, {"a", "a.b", false}, {"a.*", "a.b.c", false}, {"a.>", "a", false}, {"a.*", "a.", false}, {"b.>", "a.b", false},
	} {
		if got := SubjectMatches(c.pattern, c.subject); got != c.want {
			t.Errorf("%s / %s: %v", c.pattern, c.subject, got)
		}
	}
}

func TestReplyAllowed(t *testing.T) {
	for _, c := range []struct {
		subject, reply string
		want           bool
	}{
		{"weft.beat.n1", "_INBOX_n1.x.y", true},
		{"weft.beat.n1", "_INBOX_n2.x", false},
		{"weft.beat.n1", "_INBOX_n1", false},
		{"weft.beat.n1", "_INBOX.x", false},
		{"weft.beat.n1", "weft.report.n2", false},
		{"weft.request.acme.submit", "_INBOX_acme.x", true},
		{"weft.request.acme.submit", "_INBOX_beta.x", false},
		{"weft.request.acme.submit", "weft.event.beta.x", false},
		{"weft.api.acme.events", "_INBOX_acme.x", true},
		{"weft.rpc.allocator.plan", "_INBOX.x", true},
		{"weft.rpc.allocator.plan", "weft.ledger", false},
		{"weft.rpc.checkpoint.locate", "_INBOX_n1.x", false},
		{"weft.rpc.checkpoint.locate.n1", "_INBOX_n1.x", true},
		{"weft.rpc.checkpoint.locate.n1", "_INBOX_n2.x", false},
		{"weft.rpc.checkpoint.locate.n1", "_INBOX.x", false},
		{"weft.rpc.allocator.plan", "$JS.API.STREAM.DELETE.LEDGER", false},
	} {
		if got := ReplyAllowed(c.subject, c.reply); got != c.want {
			t.Errorf("%s answered to %s: %v", c.subject, c.reply, got)
		}
	}
}
