package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// record is a part.json that holds, for the given files; a test changes what it wants to be wrong.
func record(rank uint32, step uint64, files map[string]string) map[string]any {
	list := []any{}
	for name, content := range files {
		sum := sha256.Sum256([]byte(content))
		list = append(list, map[string]any{"name": name, "bytes": len(content), "sha256": hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(list, func(a, b any) int {
		return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
	})
	return map[string]any{
		"weft_part": 1, "id": strings.Repeat("0a", 16), "tenant": "acme", "job": "j1", "attempt": 1, "step": step, "class": "full",
		"save": saveid.Name(1, step, weftv1.SaveClass_SAVE_CLASS_FULL), "declared": "0-3", "rank": rank, "world_size": 4, "node": "n1",
		"created_ns": 1, "files": list,
	}
}

func encode(t testing.TB, r any) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// publish writes a part as its rank would, and returns its directory.
func publish(t testing.TB, root string, r map[string]any, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(root, r["tenant"].(string), r["job"].(string), r["save"].(string), saveid.PartDir(r["rank"].(uint32)))
	for name, content := range files {
		write(t, filepath.Join(dir, name), []byte(content))
	}
	write(t, filepath.Join(dir, PartFile), encode(t, r))
	return dir
}

var twoFiles = map[string]string{"optim/0.bin": "momentum", "state.bin": "weights"}

func wantCorrupt(t *testing.T, err error, why string) {
	t.Helper()
	var bad *Corrupt
	if !errors.As(err, &bad) {
		t.Errorf("%v, want a Corrupt that says %q", err, why)
		return
	}
	if !strings.Contains(bad.Reason, why) {
		t.Errorf("corrupt because %q, want %q", bad.Reason, why)
	}
}

// wantLater checks that an error is not final: nothing is known of the part.
func wantLater(t *testing.T, err error) {
	t.Helper()
	var bad *Corrupt
	if err == nil || errors.As(err, &bad) {
		t.Errorf("%v, want an error that is not final", err)
	}
}
