package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The first start makes a token, later ones keep it, and an operator's own token file is left alone.
func TestAdminToken(t *testing.T) {
	data := filepath.Join(t.TempDir(), "new")
	tokens := filepath.Join(data, "tokens.json")
	first, err := adminToken(data, tokens)
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	if info, err := os.Stat(filepath.Join(data, "admin-token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if b, _ := os.ReadFile(tokens); strings.Contains(string(b), first) {
		t.Error("the token file holds the token itself")
	}
	if again, err := adminToken(data, tokens); err != nil || again != first {
		t.Errorf("second start: %q, %v", again, err)
	}
	if err := os.Remove(tokens); err != nil { // a token that nothing knows any more is worthless
		t.Fatal(err)
	}
	if fresh, err := adminToken(data, tokens); err != nil || fresh == first || fresh == "" {
		t.Errorf("without its file: %q, %v", fresh, err)
	}

	own := filepath.Join(t.TempDir(), "own.json")
	var out bytes.Buffer
	if err := token([]string{"--file", own, "--name", "ann", "--role", "user", "--tenant", "vision"}, &out); err != nil || out.Len() == 0 {
		t.Fatal(err)
	}
	if admin, err := adminToken(t.TempDir(), own); err != nil || admin != "" {
		t.Errorf("beside the operator's own: %q, %v", admin, err)
	}
}

func TestTokenTeaches(t *testing.T) {
	for _, args := range [][]string{{"--fly"}, {"ann"}, {"--file", filepath.Join(t.TempDir(), "t"), "--name", "ann", "--role", "king"}} {
		if err := token(args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "usage: weft-gateway token") {
			t.Errorf("%v: %v", args, err)
		}
	}
	var out bytes.Buffer
	if err := token([]string{"--help"}, &out); err != nil || !strings.Contains(out.String(), "usage: weft-gateway token") {
		t.Errorf("%v: %s", err, out.String())
	}
}
