package launch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func archive(t *testing.T, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for _, h := range hs {
		body := "content of " + h.Name
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	b := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "train.py", Mode: 0o644}, tar.Header{Typeflag: tar.TypeReg, Name: "bin/run", Mode: 0o4777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/same", Linkname: "../train.py"})
	if err := Unpack(bytes.NewReader(b), dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"train.py": 0o644, "bin/run": 0o755} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "bin/same")); err != nil || string(got) != "content of train.py" {
		t.Errorf("link: %q %v", got, err)
	}
}

func TestNothingLeavesTheDirectory(t *testing.T) {
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, hs := range map[string][]tar.Header{
		"parent":        {reg("../evil")},
		"inner parent":  {reg("a/../../evil")},
		"absolute":      {reg("/tmp/evil")},
		"absolute link": {link("l", "/")},
		"link out":      {link("a/l", "../../x")},
		"hard link":     {{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}},
		"device":        {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
		"pipe":          {{Typeflag: tar.TypeFifo, Name: "pipe"}},
		"twice":         {reg("same"), reg("same")},
	} {
		outer := t.TempDir()
		dir := filepath.Join(outer, "work")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Unpack(bytes.NewReader(archive(t, hs...)), dir); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if es, _ := os.ReadDir(outer); len(es) != 1 {
			t.Errorf("%s left the directory: %v", name, es)
		}
	}
	b := archive(t, reg("a"))
	if err := Unpack(bytes.NewReader(b[:len(b)-6]), t.TempDir()); err == nil {
		t.Error("a cut archive was accepted")
	}
}

func TestFetchKeepsOnlyTheRightBytes(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	store := membus.New().Objects(bus.BucketBundles)
	good := []byte("an archive")
	sum := blake3.Sum256(good)
	digest := "b3-" + hex.EncodeToString(sum[:])
	if _, err := Fetch(ctx, store, dir, digest); !errors.Is(err, bus.ErrNotFound) {
		t.Fatalf("absent: %v", err)
	}
	if err := store.Put(ctx, digest, strings.NewReader("others")); err != nil {
		t.Fatal(err)
	}
	if _, err := Fetch(ctx, store, dir, digest); err == nil {
		t.Fatal("wrong bytes were accepted")
	}
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Fatalf("wrong bytes were kept: %v", es)
	}
	if err := store.Put(ctx, digest, bytes.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	name, err := Fetch(ctx, store, dir, digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(ctx, digest); err != nil {
		t.Fatal(err)
	}
	if again, err := Fetch(ctx, store, dir, digest); err != nil || again != name {
		t.Fatalf("not kept: %v", err)
	}
	for _, bad := range []string{"", "b3-../../x", "spec-1"} {
		if _, err := Fetch(ctx, store, dir, bad); err == nil {
			t.Errorf("digest %q was accepted", bad)
		}
	}
}

func TestCheckPortsFindsWhatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := uint32(l.Addr().(*net.TCPAddr).Port)
	a := assigned(placement(0, 0, 1))
	a.SetMasterPort(taken)
	s := spec(weftv1.Framework_FRAMEWORK_PYTORCH, group("worker", "x"))
	var busy *BusyPort
	if err := CheckPorts(a, s); !errors.As(err, &busy) || busy.Port != taken {
		t.Errorf("got %v", err)
	}
	// Only where rank 0 runs is the port this node's.
	a.GetPlacements()[0].SetFirstRank(1)
	if err := CheckPorts(a, s); err != nil {
		t.Errorf("got %v", err)
	}
	// Every TensorFlow rank listens on its own.
	a.GetPlacements()[0].SetPortBase(taken)
	s.SetFramework(weftv1.Framework_FRAMEWORK_TENSORFLOW)
	if err := CheckPorts(a, s); !errors.As(err, &busy) {
		t.Errorf("got %v", err)
	}
}

func TestResume(t *testing.T) {
	ctx, n := context.Background(), node(true)
	n.SavesDir = t.TempDir()
	a := assigned(placement(0, 0, 2))
	a.SetResumeFrom(weftv1.SaveRef_builder{Save: new("a1-s000000000005-full")}.Build())
	dir := filepath.Join(n.SaveDir("acme", "job-a"), "a1-s000000000005-full")
	part := func(r uint32, name string) *weftv1.SaveCopy {
		return weftv1.SaveCopy_builder{Node: new("n2"), Path: new("acme/job-a/a1-s000000000005-full/" + name), Ranks: []uint32{r}}.Build()
	}
	at := weftv1.LocateReply_builder{Copies: []*weftv1.SaveCopy{part(0, "rank-0"), part(2, "rank-2"), part(5, "rank-5")}}.Build()
	var read []string
	verify := func(_ context.Context, d string) error { read = append(read, filepath.Base(d)); return nil }
	var bad *Unrestorable
	if _, err := Resume(ctx, n, a, at, verify); !errors.As(err, &bad) || !strings.Contains(bad.Why, "n2") {
		t.Fatalf("parts that are not here: %v", err)
	}
	for _, r := range []string{"rank-0", "rank-2", "rank-5"} {
		if err := os.MkdirAll(filepath.Join(dir, r), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, r, "part.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read = nil
	if got, err := Resume(ctx, n, a, at, verify); err != nil || got != dir {
		t.Fatalf("got %q, %v", got, err)
	}
	// Of four ranks 0 and 1 run here: parts 0 and 5 are this node's to read, part 2 another's.
	if strings.Join(read, " ") != "rank-0 rank-5" {
		t.Errorf("read %v", read)
	}
	if _, err := Resume(ctx, n, a, at, func(context.Context, string) error { return &Unrestorable{"damaged"} }); !errors.As(err, &bad) {
		t.Errorf("damaged: %v", err)
	}
	var now *Unreadable
	if _, err := Resume(ctx, n, a, at, func(context.Context, string) error { return os.ErrPermission }); !errors.As(err, &now) || errors.As(err, &bad) {
		t.Errorf("unreadable: %v", err)
	}
	for name, r := range map[string]*weftv1.LocateReply{
		"refused": weftv1.LocateReply_builder{Error: new("quarantined")}.Build(), "nowhere": {},
		"outside": weftv1.LocateReply_builder{Copies: []*weftv1.SaveCopy{part(0, "../../../../etc")}}.Build(),
	} {
		if _, err := Resume(ctx, n, a, r, verify); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
