package manifest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// Bounds of what one directory may hold; more is an error, not a reason to run out of memory.
const (
	maxEntries = 100_000
	maxParts   = saveid.MaxRanks
)

// ListParts returns the places of all published parts below a tier's root, as paths with slashes relative to it, sorted.
// A part there has a proper name and place; nothing else is known of it. Names that do not belong are passed over. The error
// joins what could not be listed; the parts of all other jobs count all the same.
func ListParts(root string) ([]string, error) {
	base, err := openDir(root)
	if err != nil {
		return nil, err
	}
	defer base.close()
	tenants, err := base.names(maxEntries)
	if err != nil {
		return nil, err
	}
	var out []string
	var errs []error
	for _, t := range tenants {
		if !saveid.Token(t) {
			continue
		}
		dir, err := base.sub(t)
		if err != nil {
			if !passOver(err) {
				errs = append(errs, err)
			}
			continue
		}
		jobs, err := dir.names(maxEntries)
		dir.close()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, j := range jobs {
			parts, err := jobParts(base, Job{t, j}, nil)
			if err != nil {
				errs = append(errs, fmt.Errorf("saves of job %s: %w", j, err))
			}
			out = append(out, parts...)
		}
	}
	return out, errors.Join(errs...)
}

// passOver: what can't be entered because it is no directory, or gone, holds no part.
func passOver(err error) bool { return errors.Is(err, errNotPlain) || errors.Is(err, fs.ErrNotExist) }

// jobParts lists the parts of one job, but none that skip names.
func jobParts(base *dir, j Job, skip func(path string) bool) ([]string, error) {
	if !saveid.Token(j.Tenant) || !saveid.Token(j.ID) {
		return nil, nil
	}
	job, err := base.sub(j.Tenant, j.ID)
	if err != nil {
		if passOver(err) {
			return nil, nil
		}
		return nil, err
	}
	defer job.close()
	saves, err := job.names(maxEntries)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range saves {
		if _, err := saveid.Parse(s); err != nil {
			continue
		}
		save, err := job.sub(s)
		if err != nil {
			if passOver(err) {
				continue
			}
			return nil, err
		}
		ranks, err := save.names(maxParts)
		save.close()
		if err != nil {
			return nil, err
		}
		for _, r := range ranks {
			rank, ok := saveid.ParsePartDir(r)
			if !ok {
				continue
			}
			if path := saveid.Path(j.Tenant, j.ID, s, rank); skip == nil || !skip(path) {
				out = append(out, path)
			}
		}
	}
	return out, nil
}

// Scanner finds the parts that the ranks of one node publish. What it returns has been verified: every byte was read back.
// It is not safe for concurrent use.
type Scanner struct {
	root string
	node string
	done map[string]bool // parts returned, corrupt, or another node's: a published part never changes
}

// NewScanner looks below a tier's root for the parts of one node's ranks, by the node's name that they carry.
func NewScanner(root, node string) *Scanner {
	return &Scanner{root: root, node: node, done: map[string]bool{}}
}

// Scan returns the parts of the given jobs that are new since the last call, verified. Call it while their ranks run and
// once after they ended. A part is returned once per Scanner: it is the caller's to report until that succeeds. The error joins what was
// found wrong, each *Corrupt once, and what could not be read now and will be tried again; the parts count all the same.
// A job that is not named is forgotten: name it again, and its parts are returned again.
func (s *Scanner) Scan(ctx context.Context, jobs []Job) ([]*weftv1.PartRef, error) {
	base, err := openDir(s.root)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // no rank has saved yet
		}
		return nil, err
	}
	defer base.close()
	var out []*weftv1.PartRef
	var errs []error
	for _, j := range jobs {
		paths, err := jobParts(base, j, func(path string) bool { return s.done[path] })
		if err != nil {
			errs = append(errs, fmt.Errorf("saves of job %s: %w", j.ID, err))
			continue
		}
		for _, path := range paths {
			ref, err := s.look(ctx, path)
			var bad *Corrupt
			switch {
			case ctx.Err() != nil:
				return out, errors.Join(append(errs, ctx.Err())...)
			case errors.As(err, &bad):
				s.done[path] = true
				errs = append(errs, err)
			case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
			case err != nil:
				errs = append(errs, err)
			default:
				s.done[path] = true
				if ref != nil {
					out = append(out, ref)
				}
			}
		}
	}
	s.keep(jobs)
	return out, errors.Join(errs...)
}

// look verifies one part; nil if it is another node's.
func (s *Scanner) look(ctx context.Context, path string) (*weftv1.PartRef, error) {
	dir := filepath.Join(s.root, filepath.FromSlash(path))
	_, p, d, err := read(dir)
	if err != nil {
		return nil, err
	}
	d.close()
	if p.Node != s.node {
		return nil, nil
	}
	return Verify(ctx, dir)
}

// keep drops the memory of jobs that are not named any more.
func (s *Scanner) keep(jobs []Job) {
	named := map[Job]bool{}
	for _, j := range jobs {
		named[j] = true
	}
	for path := range s.done {
		tenant, rest, _ := strings.Cut(path, "/")
		job, _, _ := strings.Cut(rest, "/")
		if !named[Job{tenant, job}] {
			delete(s.done, path)
		}
	}
}
