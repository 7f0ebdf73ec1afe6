package auth

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func create(t *testing.T, path, name, tenant string, r Role) string {
	t.Helper()
	token, err := Create(path, Identity{Name: name, Tenant: tenant, Role: r})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "tokens.json")
	admin := create(t, path, "root", "", Admin)
	user := create(t, path, "ann", "acme", User)
	if admin == user || !strings.HasPrefix(admin, "weft_") || len(admin) < 40 {
		t.Errorf("tokens %q, %q", admin, user)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), admin) || strings.Contains(string(text), strings.TrimPrefix(user, "weft_")) {
		t.Error("the file holds a token")
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := s.Check(user); !ok || id != (Identity{"ann", "acme", User}) || !id.Sees("acme") || id.Sees("beta") {
		t.Errorf("got %v, %v", id, ok)
	}
	if id, ok := s.Check(admin); !ok || !id.Sees("beta") {
		t.Errorf("got %v, %v", id, ok)
	}
	for _, wrong := range []string{"", "weft_", user + "x", user[:len(user)-1], strings.ToUpper(user)} {
		if id, ok := s.Check(wrong); ok || id.Sees("acme") || id.Sees("") && id.Role != "" {
			t.Errorf("%q is %v", wrong, id)
		}
	}
}

// Tokens made and revoked while the gateway runs count within a second; a file broken by hand signs nobody out.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	first := create(t, path, "root", "", Admin)
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	s.now = func() time.Time { return clock }
	later := func() { clock = clock.Add(reloadEvery) }
	alone, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := create(t, path, "ann", "acme", User)
	later()
	if _, ok := s.Check(second); !ok {
		t.Error("a new token is not known")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	later()
	if _, ok := s.Check(first); !ok {
		t.Error("a broken file signed everybody out")
	}
	if err := os.WriteFile(path, alone, 0o600); err != nil {
		t.Fatal(err)
	}
	later()
	if _, ok := s.Check(second); ok {
		t.Error("a revoked token still counts")
	}
	if _, ok := s.Check(first); !ok {
		t.Error("the other one does not")
	}
}

func TestConcurrentCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	tokens := make([]string, 8)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			tokens[i], _ = Create(path, Identity{Name: "x", Tenant: "acme", Role: Viewer})
		})
	}
	wg.Wait()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, token := range tokens {
		if _, ok := s.Check(token); !ok {
			t.Errorf("token %d was lost", i)
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.json")
	for part, id := range map[string]Identity{
		"name":   {Role: Admin},
		"role":   {Name: "x", Role: "owner"},
		"tenant": {Name: "x", Role: User},
	} {
		if _, err := Create(path, id); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: %v", id, err)
		}
	}
	write := func(text string, mode os.FileMode) string {
		p := filepath.Join(dir, "wrong.json")
		_ = os.Remove(p)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		text, part string
		mode       os.FileMode
	}{
		{`{"tokens":[]}`, "chmod 600", 0o644},
		{`{`, "create tokens anew", 0o600},
		{`{"tokens":[{"name":"x","role":"admin","sha256":"zz"}]}`, "SHA-256", 0o600},
		{`{"tokens":[{"name":"x","role":"user","sha256":"` + strings.Repeat("0", 64) + `"}]}`, "tenant", 0o600},
	} {
		if _, err := Open(write(c.text, c.mode)); err == nil || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: %v does not say %q", c.text, err, c.part)
		}
	}
	if _, err := Open(filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "weft-gateway token") {
		t.Errorf("got %v", err)
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{"Bearer a": "a", "bearer  a ": "a", "Basic a": "", "Bearer": "", "": "", "Bearer ": ""} {
		if got, ok := Bearer(header); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", header, got, ok)
		}
	}
}
