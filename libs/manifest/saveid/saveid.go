// Package saveid owns the names of saves and of their places: which save, whose, and where a rank's part of it lies
// below a tier's root. It touches no file.
//
//	<tenant>/<job>/a<attempt>-s<step>-<light|full>/rank-<r>
package saveid

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Limits of one part; they keep a report below what one message of the bus may carry. weft.py refuses more.
const (
	MaxRanks     = 1 << 16
	MaxFiles     = 1000
	MaxName      = 512       // bytes of one file's name
	MaxNames     = 128 << 10 // bytes of all names together
	MaxFileBytes = 1 << 50
)

// stepDigits pads steps so that names sort as steps do.
const stepDigits = 12

// Name is the name of a save. It is never used twice: an attempt saves a step once per class.
func Name(attempt uint32, step uint64, class weftv1.SaveClass) string {
	word := "full"
	if class == weftv1.SaveClass_SAVE_CLASS_LIGHT {
		word = "light"
	}
	return fmt.Sprintf("a%d-s%0*d-%s", attempt, stepDigits, step, word)
}

// Parse reads a save's name; it accepts exactly what Name makes.
func Parse(name string) (*weftv1.SaveRef, error) {
	bad := fmt.Errorf("%.80q is no name of a save; they look like a1-s000000000100-full", name)
	w := strings.Split(name, "-")
	if len(w) != 3 || !strings.HasPrefix(w[0], "a") || !strings.HasPrefix(w[1], "s") {
		return nil, bad
	}
	attempt, err1 := strconv.ParseUint(w[0][1:], 10, 32)
	step, err2 := strconv.ParseUint(w[1][1:], 10, 64)
	class, ok := ParseClass(w[2])
	if err1 != nil || err2 != nil || !ok || attempt == 0 || Name(uint32(attempt), step, class) != name {
		return nil, bad
	}
	return weftv1.SaveRef_builder{Save: &name, Attempt: new(uint32(attempt)), Step: &step, Class: &class}.Build(), nil
}

// ParseClass reads light or full.
func ParseClass(word string) (weftv1.SaveClass, bool) {
	switch word {
	case "light":
		return weftv1.SaveClass_SAVE_CLASS_LIGHT, true
	case "full":
		return weftv1.SaveClass_SAVE_CLASS_FULL, true
	}
	return 0, false
}

// PartDir is the name of a rank's part in its save's directory.
func PartDir(rank uint32) string { return "rank-" + strconv.FormatUint(uint64(rank), 10) }

// ParsePartDir reads what PartDir makes.
func ParsePartDir(name string) (rank uint32, ok bool) {
	digits, found := strings.CutPrefix(name, "rank-")
	n, err := strconv.ParseUint(digits, 10, 32)
	if !found || err != nil || PartDir(uint32(n)) != name {
		return 0, false
	}
	return uint32(n), true
}

// Path is where a part lies below the root of a tier, with slashes.
func Path(tenant, job, save string, rank uint32) string {
	return tenant + "/" + job + "/" + save + "/" + PartDir(rank)
}

// Token says whether s may name a tenant, a job or a node.
func Token(s string) bool {
	if len(s) < 1 || len(s) > 63 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// FileName says whether name may be a file of a part: relative, with slashes, no element empty, hidden by a dot alone,
// or leading out; no byte that a terminal or a shell would take for something else than text.
func FileName(name string) bool {
	if name == "" || len(name) > MaxName || name == "part.json" {
		return false
	}
	for _, e := range strings.Split(name, "/") {
		if e == "" || e == "." || e == ".." || len(e) > 255 {
			return false
		}
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f || r == '\\' || r == '\uFFFD' {
			return false
		}
	}
	return true
}

// Ranks checks a set of ranks: ascending, each once, not empty.
func Ranks(rs []uint32) bool {
	if len(rs) == 0 || len(rs) > MaxRanks {
		return false
	}
	for i, r := range rs {
		if r >= MaxRanks || i > 0 && r <= rs[i-1] {
			return false
		}
	}
	return true
}

// Check says what is wrong with a part as somebody reported it; nothing of it has been compared with any file. Every
// name in a part that passes can be used as a path below the tier's root.
func Check(p *weftv1.PartRef) error {
	ref, err := Parse(p.GetSave())
	switch {
	case err != nil:
		return err
	case !Token(p.GetTenant()) || !Token(p.GetJob()):
		return fmt.Errorf("tenant %.70q or job %.70q is not 1 to 63 characters of a-z, 0-9 and -", p.GetTenant(), p.GetJob())
	case ref.GetAttempt() != p.GetAttempt() || ref.GetStep() != p.GetStep() || ref.GetClass() != p.GetClass():
		return fmt.Errorf("save %s says attempt %d, step %d, %v", p.GetSave(), p.GetAttempt(), p.GetStep(), p.GetClass())
	case !Ranks(p.GetDeclared()):
		return fmt.Errorf("save %s declares no proper set of ranks", p.GetSave())
	case len(p.GetRanks()) != 1:
		return fmt.Errorf("a part is one rank's, this one has %d", len(p.GetRanks()))
	}
	rank := p.GetRanks()[0]
	if _, ok := slices.BinarySearch(p.GetDeclared(), rank); !ok {
		return fmt.Errorf("rank %d is not among the ranks that save %s declares", rank, p.GetSave())
	}
	if want := Path(p.GetTenant(), p.GetJob(), p.GetSave(), rank); p.GetPath() != want {
		return fmt.Errorf("the part says it lies in %.200q, its place is %s", p.GetPath(), want)
	}
	if n := len(p.GetFiles()); n == 0 || n > MaxFiles {
		return fmt.Errorf("a part has 1 to %d files, this one %d", MaxFiles, n)
	}
	names := 0
	for i, f := range p.GetFiles() {
		switch {
		case !FileName(f.GetName()):
			return fmt.Errorf("%.80q may not name a file of a part", f.GetName())
		case i > 0 && f.GetName() <= p.GetFiles()[i-1].GetName():
			return fmt.Errorf("files are not listed in order, each once: %.80q", f.GetName())
		case f.GetBytes() < 0 || f.GetBytes() > MaxFileBytes:
			return fmt.Errorf("file %s has %d bytes", f.GetName(), f.GetBytes())
		case f.GetRank() != rank:
			return fmt.Errorf("file %s is rank %d's, the part rank %d's", f.GetName(), f.GetRank(), rank)
		}
		names += len(f.GetName())
	}
	if names > MaxNames {
		return fmt.Errorf("the names of the part's files take %d bytes, more than %d", names, MaxNames)
	}
	return nil
}

// Bytes is the size of a part's files.
func Bytes(p *weftv1.PartRef) (n int64) {
	for _, f := range p.GetFiles() {
		n += f.GetBytes()
	}
	return n
}
