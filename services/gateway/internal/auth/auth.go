// Package auth says who a caller is: bearer tokens with a tenant and a role, kept only as SHA-256 hashes in a file that
// nobody else may read. It never decides what a caller may do with what; that is the api's.
package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Role is what a token may do.
type Role string

// The roles.
const (
	Admin  Role = "admin"  // everything, in every tenant
	User   Role = "user"   // submit, cancel and read in its own tenant
	Viewer Role = "viewer" // read in its own tenant
)

// Identity is who a token stands for.
type Identity struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant,omitempty"` // empty only for administrators
	Role   Role   `json:"role"`
}

// Sees says whether the caller may know of things of a tenant.
func (i Identity) Sees(tenant string) bool { return i.Role == Admin || tenant == i.Tenant }

// Validate names what is wrong with an identity.
func (i Identity) Validate() error {
	switch {
	case i.Name == "":
		return errors.New("token: it needs a name, such as the person or the pipeline that holds it")
	case !slices.Contains([]Role{Admin, User, Viewer}, i.Role):
		return fmt.Errorf("token: role %q is not known; use admin, user or viewer", i.Role)
	case i.Tenant == "" && i.Role != Admin:
		return fmt.Errorf("token: role %s needs a tenant, the first part of its queues", i.Role)
	}
	return nil
}

type entry struct {
	Identity
	SHA256  string    `json:"sha256"`
	Created time.Time `json:"created"`
	sum     [sha256.Size]byte
}

type file struct {
	Tokens []entry `json:"tokens"`
}

// prefix marks our tokens, so that scanners for leaked secrets find them.
const prefix = "weft_"

// Create makes a token, adds its hash to the file (made with mode 0600 if absent), and returns the token, which is
// stored nowhere.
func Create(path string, id Identity) (string, error) {
	if err := id.Validate(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer func() { _ = lock.Close() }() // closing it also unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("token file: lock %s: %w", lock.Name(), err)
	}
	entries, err := read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	token := prefix + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(token))
	entries = append(entries, entry{Identity: id, SHA256: hex.EncodeToString(sum[:]), Created: time.Now().UTC().Truncate(time.Second)})
	b, err := json.MarshalIndent(file{entries}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	return token, replace(path, append(b, '\n'))
}

// replace writes a file so that a reader, also after a crash, sees the old content or the new.
func replace(path string, b []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // 0600
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	return nil
}

func read(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("token file %s: others may read it (mode %04o); run: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	var doc file
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(f); err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	if err := json.Unmarshal(buf.Bytes(), &doc); err != nil {
		return nil, fmt.Errorf("token file %s: %w; restore it, or remove it and create tokens anew", path, err)
	}
	for i := range doc.Tokens {
		e := &doc.Tokens[i]
		sum, err := hex.DecodeString(e.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("token file %s: the hash of %q is not SHA-256 in hex; remove that entry", path, e.Name)
		}
		if err := e.Validate(); err != nil {
			return nil, fmt.Errorf("token file %s: entry %d: %w", path, i+1, err)
		}
		copy(e.sum[:], sum)
	}
	return doc.Tokens, nil
}

// reloadEvery bounds how long a revoked token still works, and how long a new one does not yet.
const reloadEvery = time.Second

// Store answers who a token stands for, from a token file that may change meanwhile.
type Store struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	entries []entry
	looked  time.Time
	info    fs.FileInfo
}

// Open reads a token file.
func Open(path string) (*Store, error) {
	s := &Store{path: path, now: time.Now}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// Check returns the identity of a token. It compares with every hash in constant time, so that timing tells nothing.
func (s *Store) Check(token string) (Identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); now.Sub(s.looked) >= reloadEvery {
		// A file that is missing or broken just now leaves the tokens read before: an edit half done signs nobody out.
		_ = s.loadLocked()
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range s.entries {
		if subtle.ConstantTimeCompare(sum[:], s.entries[i].sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Identity{}, false
	}
	return s.entries[found].Identity, true
}

func (s *Store) load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loadLocked()
}

func (s *Store) loadLocked() error {
	s.looked = s.now()
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("token file: %w; create one: weft-gateway token --file %s --name admin --role admin", err, s.path)
	}
	if s.info != nil && os.SameFile(info, s.info) && info.ModTime().Equal(s.info.ModTime()) && info.Size() == s.info.Size() {
		return nil
	}
	entries, err := read(s.path)
	if err != nil {
		return err
	}
	s.entries, s.info = entries, info
	return nil
}
