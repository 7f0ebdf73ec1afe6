package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

func paths(t *testing.T, s *Scanner, wantErr string, jobs ...Job) []string {
	t.Helper()
	refs, err := s.Scan(t.Context(), jobs)
	if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
		t.Errorf("error %v, want %q", err, wantErr)
	}
	out := []string{}
	for _, r := range refs {
		out = append(out, r.GetPath())
	}
	return out
}

func wantPaths(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestScan(t *testing.T) {
	root := t.TempDir()
	j1, j2 := Job{"acme", "j1"}, Job{"acme", "j2"}
	s := NewScanner(root, "n1")
	wantPaths(t, "before any save", paths(t, NewScanner(root+"/none", "n1"), "", j1))
	publish(t, root, record(1, 7, twoFiles), twoFiles)
	other := record(2, 7, twoFiles)
	other["node"] = "n2"
	publish(t, root, other, twoFiles)
	of := record(0, 3, twoFiles)
	of["job"] = "j2"
	publish(t, root, of, twoFiles)
	write(t, filepath.Join(root, "acme/j1/.staging/a1-s000000000009-full.r0.1", PartFile), encode(t, record(0, 9, twoFiles)))

	first := "acme/j1/a1-s000000000007-full/rank-1"
	wantPaths(t, "one job, one node", paths(t, s, "", j1), first)
	wantPaths(t, "again", paths(t, s, "", j1))
	wantPaths(t, "another job", paths(t, s, "", j1, j2), "acme/j2/a1-s000000000003-full/rank-0")
	wantPaths(t, "j1 not named", paths(t, s, "", j2))
	wantPaths(t, "j1 named again", paths(t, s, "", j1, j2), first)

	// Damage is said once, and hides nothing.
	bad := publish(t, root, record(0, 8, twoFiles), twoFiles)
	write(t, bad+"/state.bin", []byte("weighty"))
	publish(t, root, record(3, 8, twoFiles), twoFiles)
	wantPaths(t, "beside damage", paths(t, s, "SHA-256", j1, j2), "acme/j1/a1-s000000000008-full/rank-3")
	wantPaths(t, "damage again", paths(t, s, "", j1, j2))
	wantPaths(t, "improper names", paths(t, s, "", Job{"..", "j1"}, Job{"acme", "."}, Job{"", ""}, j1))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s = NewScanner(root, "n1")
	if refs, err := s.Scan(ctx, []Job{j1}); len(refs) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, %v", refs, err)
	}
	wantPaths(t, "after a cancelled scan", paths(t, s, "SHA-256", j1), first, "acme/j1/a1-s000000000008-full/rank-3")
}

func TestListParts(t *testing.T) {
	root := t.TempDir()
	publish(t, root, record(10, 7, twoFiles), nil)
	publish(t, root, record(2, 7, twoFiles), nil)
	publish(t, root, record(0, 12, twoFiles), nil)
	for _, stray := range []string{
		"file", "Acme/j1/a1-s000000000001-full/rank-0/x", "acme/j_1/a1-s000000000001-full/rank-0/x", "acme/j1/a1-s1-full/rank-0/x",
		"acme/j1/a1-s000000000001-full/rank-00/x", "acme/j1/a1-s000000000001-full/rank--1/x", "acme/j1/a0-s000000000001-full/rank-0/x",
		"acme/j1/a1-s000000000001-best/rank-0/x", "acme/j1/.staging/a1-s000000000001-full.r0.1/part.json", "acme/j1/.trash/a1-s000000000001-full/rank-0/x",
		"acme/file", "acme/j2/a1-s000000000001-full",
	} {
		write(t, filepath.Join(root, stray), nil)
	}
	got, err := ListParts(root)
	if err != nil {
		t.Error(err)
	}
	wantPaths(t, "parts", got,
		"acme/j1/a1-s000000000007-full/rank-10", "acme/j1/a1-s000000000007-full/rank-2", "acme/j1/a1-s000000000012-full/rank-0")
	if _, err := ListParts(root + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestCrowdedJobHidesNoOther: who fills their own directory loses their own listing only.
func TestCrowdedJobHidesNoOther(t *testing.T) {
	root := t.TempDir()
	publish(t, root, record(1, 7, twoFiles), twoFiles)
	crowded := filepath.Join(root, "aaa/j0", saveid.Name(1, 1, 2))
	if err := os.MkdirAll(crowded, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := crowd(crowded, maxParts+1, func(p string) error { return os.Symlink("x", p) }); err != nil {
		t.Fatal(err)
	}
	got, err := ListParts(root)
	if err == nil || !strings.Contains(err.Error(), "job j0") {
		t.Error(err)
	}
	wantPaths(t, "the other job's", got, "acme/j1/a1-s000000000007-full/rank-1")
	s := NewScanner(root, "n1")
	wantPaths(t, "scanned", paths(t, s, "j0", Job{"aaa", "j0"}, Job{"acme", "j1"}), "acme/j1/a1-s000000000007-full/rank-1")
}

func TestRemove(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	j := Job{"acme", "j1"}
	save := saveid.Name(1, 7, 2)
	gone := publish(t, root, record(1, 7, twoFiles), twoFiles)
	stays := publish(t, root, record(1, 8, twoFiles), twoFiles)
	write(t, other+"/precious", []byte("x"))
	for _, at := range []string{gone + "/link", filepath.Dir(gone) + "/link", filepath.Join(root, "acme/j1/link")} {
		if err := os.Symlink(other, at); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 { // the second time there is nothing; the third there is what an earlier call left
		if i == 2 {
			write(t, filepath.Join(root, "acme/j1", trash, save, "rank-1/state.bin"), nil)
		}
		if err := Remove(root, j, save); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Join(root, "acme/j1")); err != nil || len(left) != 2 { // the other save, and the link
			t.Errorf("%v, %v", left, err)
		}
	}
	if _, err := Verify(t.Context(), stays); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(other + "/precious"); err != nil {
		t.Error(err)
	}
	if err := Remove(root, Job{"acme", "none"}, save); err != nil {
		t.Errorf("a job without saves: %v", err)
	}
	for _, bad := range []struct {
		j    Job
		save string
	}{{j, ""}, {j, ".."}, {j, "a1-s000000000007-full/../.."}, {Job{"..", "acme"}, save}, {Job{"acme", "../acme/j1"}, save}, {Job{"", ""}, save}} {
		if err := Remove(root, bad.j, bad.save); err == nil {
			t.Errorf("removed %+v", bad)
		}
	}
}

// TestRemoveThroughLinks: a job that puts links in place of its directories has nothing of anybody else's removed.
func TestRemoveThroughLinks(t *testing.T) {
	save := saveid.Name(1, 7, 2)
	for _, at := range []string{"acme", "acme/j1", "acme/j1/" + save, "acme/j1/" + trash} {
		t.Run(at, func(t *testing.T) {
			root := t.TempDir()
			victim := filepath.Join(t.TempDir(), "victim")
			for _, below := range []string{"", "j1", "j1/" + save, save, "rank-0"} {
				write(t, filepath.Join(victim, below, "precious"), nil)
			}
			publish(t, root, record(1, 7, twoFiles), twoFiles)
			link := filepath.Join(root, at)
			if err := errors.Join(os.RemoveAll(link), os.Symlink(victim, link)); err != nil {
				t.Fatal(err)
			}
			err := Remove(root, Job{"acme", "j1"}, save)
			for _, below := range []string{"", "j1", "j1/" + save, save, "rank-0"} {
				if _, gone := os.Stat(filepath.Join(victim, below, "precious")); gone != nil {
					t.Errorf("removed (%v): %v", err, gone)
				}
			}
		})
	}
}

func TestReachable(t *testing.T) {
	root := t.TempDir()
	publish(t, root, record(1, 7, twoFiles), nil)
	for j, want := range map[Job]bool{{"acme", "j1"}: true, {"acme", "j2"}: false, {"..", ""}: false, {"acme", ".."}: false} {
		if got := Reachable(root, j); got != want {
			t.Errorf("%v: %v", j, got)
		}
	}
	if Reachable(root+"/none", Job{"acme", "j1"}) {
		t.Error("a root that is not there is reachable")
	}
}

func TestCorruptSaysWhereAndWhy(t *testing.T) {
	if got := fmt.Sprint(&Corrupt{Path: "acme/j1/a1-s000000000007-full/rank-1", Reason: "it is missing"}); got !=
		"part acme/j1/a1-s000000000007-full/rank-1 is corrupt: it is missing" {
		t.Error(got)
	}
}
