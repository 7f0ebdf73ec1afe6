// Package savetest writes parts of saves as ranks publish them, for tests. It verifies nothing.
package savetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-fabric/weft/libs/manifest"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Tenant owns every part.
const Tenant = "acme"

// Part is what a test wants to be published.
type Part struct {
	Job      string
	Attempt  uint32
	Step     uint64
	Class    weftv1.SaveClass
	Rank     uint32
	Declared string // such as 0-3,7
}

// Node is where a rank runs.
func Node(rank uint32) string { return fmt.Sprintf("n%d", rank) }

// Write puts a part of one file, state.bin, below a tier's root and returns its path there.
func Write(root string, p Part) (string, error) {
	save := saveid.Name(p.Attempt, p.Step, p.Class)
	class := "full"
	if p.Class == weftv1.SaveClass_SAVE_CLASS_LIGHT {
		class = "light"
	}
	content := fmt.Sprintf("the state of %s at step %d of attempt %d, rank %d", p.Job, p.Step, p.Attempt, p.Rank)
	sum := sha256.Sum256([]byte(content))
	record, err := json.Marshal(map[string]any{
		"weft_part": 1, "id": strings.Repeat("0a", 16), "tenant": Tenant, "job": p.Job, "attempt": p.Attempt, "step": p.Step, "class": class,
		"save": save, "declared": p.Declared, "rank": p.Rank, "world_size": 8, "node": Node(p.Rank), "created_ns": 1,
		"files": []any{map[string]any{"name": "state.bin", "bytes": len(content), "sha256": hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return "", fmt.Errorf("savetest: %w", err)
	}
	path := saveid.Path(Tenant, p.Job, save, p.Rank)
	dir := filepath.Join(root, filepath.FromSlash(path))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("savetest: %w", err)
	}
	for name, b := range map[string][]byte{"state.bin": []byte(content), manifest.PartFile: record} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return "", fmt.Errorf("savetest: %w", err)
		}
	}
	return path, nil
}
