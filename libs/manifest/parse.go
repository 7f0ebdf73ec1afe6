package manifest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// PartFile is the name of a part's own manifest, and maxPartFile its largest size.
const (
	PartFile    = "part.json"
	maxPartFile = 1 << 20
)

// version of part.json that this package reads.
const version = 1

// part is part.json as weft.py writes it.
type part struct {
	Version   int    `json:"weft_part"`
	ID        string `json:"id"` // made by the writer, so that it knows its own part again after a lost answer
	Tenant    string `json:"tenant"`
	Job       string `json:"job"`
	Attempt   uint32 `json:"attempt"`
	Step      uint64 `json:"step"`
	Class     string `json:"class"`
	Save      string `json:"save"`
	Declared  string `json:"declared"` // such as 0-3,7
	Rank      uint32 `json:"rank"`
	World     uint32 `json:"world_size"`
	Node      string `json:"node"`
	CreatedNS int64  `json:"created_ns"` // for people, never for order
	Files     []file `json:"files"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// The keys that may stand at each level, exactly so.
var (
	partKeys = []string{"weft_part", "id", "tenant", "job", "attempt", "step", "class", "save", "declared", "rank", "world_size", "node", "created_ns", "files"}
	fileKeys = []string{"name", "bytes", "sha256"}
)

// parse reads part.json. What it returns passed every check that needs no file: names can be used as paths below the
// part's directory.
func parse(b []byte) (*part, *weftv1.PartRef, error) {
	if len(b) > maxPartFile {
		return nil, nil, fmt.Errorf("it has %d bytes, more than %d", len(b), maxPartFile)
	}
	if err := checkKeys(b); err != nil {
		return nil, nil, err
	}
	p := &part{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, nil, err
	}
	class, ok := saveid.ParseClass(p.Class)
	switch {
	case p.Version != version:
		return nil, nil, fmt.Errorf("it is of version %d, this program reads version %d; upgrade the older side", p.Version, version)
	case !ok:
		return nil, nil, fmt.Errorf("class %.20q is neither light nor full", p.Class)
	case len(p.ID) != 32 || !isHex(p.ID):
		return nil, nil, errors.New("its id is not 32 hexadecimal digits")
	case p.Node != "" && !saveid.Token(p.Node):
		return nil, nil, fmt.Errorf("node %.70q is not 1 to 63 characters of a-z, 0-9 and -", p.Node)
	}
	declared, err := parseRanks(p.Declared)
	if err != nil {
		return nil, nil, err
	}
	ref := weftv1.PartRef_builder{
		Job: &p.Job, Tenant: &p.Tenant, Attempt: &p.Attempt, Step: &p.Step, Class: &class, Save: &p.Save,
		Declared: declared, Ranks: []uint32{p.Rank}, Path: new(saveid.Path(p.Tenant, p.Job, p.Save, p.Rank)),
	}.Build()
	var files []*weftv1.SavedFile
	for _, f := range p.Files {
		if len(f.SHA256) != 64 || !isHex(f.SHA256) {
			return nil, nil, fmt.Errorf("file %.80q has no SHA-256", f.Name)
		}
		files = append(files, weftv1.SavedFile_builder{Name: new(f.Name), Bytes: new(f.Bytes), Rank: &p.Rank}.Build())
	}
	ref.SetFiles(files)
	if err := saveid.Check(ref); err != nil {
		return nil, nil, err
	}
	return p, ref, nil
}

// checkKeys refuses what encoding/json would let pass: a key twice, or in other letters, or data after the end.
func checkKeys(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := object(d, partKeys, func(key string) error {
		if key != "files" {
			return scalar(d)
		}
		if t, err := d.Token(); err != nil || t != json.Delim('[') {
			return errors.Join(errors.New("files is no list"), err)
		}
		for n := 0; d.More(); n++ {
			if n == saveid.MaxFiles {
				return fmt.Errorf("more than %d files", saveid.MaxFiles)
			}
			if err := object(d, fileKeys, func(string) error { return scalar(d) }); err != nil {
				return err
			}
		}
		_, err := d.Token()
		return err
	}); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	return nil
}

// object reads an object that has exactly the given keys, each once, in any order.
func object(d *json.Decoder, keys []string, value func(key string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("an object was expected"), err)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if !slices.Contains(keys, key) || seen[key] {
			return fmt.Errorf("key %.40q is unknown or stands there twice", key)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	for _, k := range keys {
		if !seen[k] {
			return fmt.Errorf("key %s is missing", k)
		}
	}
	return nil
}

func scalar(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if _, is := t.(json.Delim); is {
		return errors.New("a text or a number was expected")
	}
	return nil
}

// parseRanks reads a set such as 0-3,7: ascending, without overlap.
func parseRanks(s string) ([]uint32, error) {
	var out []uint32
	bad := fmt.Errorf("declared %.40q is no set of ranks such as 0-3,7", s)
	for _, r := range strings.Split(s, ",") {
		from, to, isRange := strings.Cut(r, "-")
		a, err := strconv.ParseUint(from, 10, 16)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(to, 10, 16)
		}
		if err != nil || b < a || len(out) > 0 && uint32(a) <= out[len(out)-1] {
			return nil, bad
		}
		for ; a <= b; a++ {
			out = append(out, uint32(a))
		}
	}
	return out, nil
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && s == strings.ToLower(s)
}
