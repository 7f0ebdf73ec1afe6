package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// Main is the shim's whole life; it returns the exit code of the process.
func Main(args []string) int {
	// Whoever stops agents by signal must not stop ranks. Signals are caught and dropped, not ignored: an ignored signal
	// would stay ignored in the ranks.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
	if len(args) == 1 && args[0] == spareArg {
		if args = wait(os.Stdin); args == nil {
			return 0
		}
	}
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "weft-shim: started by the agent only")
		return 2
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	s := &shim{dir: args[0], token: args[1], asked: make(chan struct{})}
	if err := s.run(); err != nil {
		slog.Error("shim", "run", s.dir, "error", err)
		return 1
	}
	return 0
}

// wait returns the arguments of a shim that was started ahead; nil if its agent ends instead.
func wait(in *os.File) []string {
	sc := bufio.NewScanner(in)
	var args []string
	for len(args) < 2 && sc.Scan() {
		args = append(args, sc.Text())
	}
	if len(args) < 2 {
		return nil
	}
	if log, err := os.OpenFile(filepath.Join(args[0], fileLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_ = unix.Dup3(int(log.Fd()), 2, 0) // also for what the runtime may have to say
		_ = log.Close()
	}
	return args
}

type shim struct {
	dir    string
	token  string
	launch Launch
	pids   map[int]uint32 // by pid, ranks not yet reaped
	procs  map[uint32]proc.ID
	asked  chan struct{} // closed once stop or kill was asked for

	mu   sync.Mutex // held while ranks are asked to end
	told []proc.ID  // who was asked
}

// lockPatience outlasts an agent that holds the lock to find out whether a shim lives.
const lockPatience = 5 * time.Second

func (s *shim) run() error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if ok, err := ReadFile(s.dir, FileLaunch, &s.launch); err != nil {
		return err
	} else if !ok || s.launch.Token != s.token {
		return errors.New("an agent has given this launch up")
	}
	if _, err := os.Stat(filepath.Join(s.dir, FileShim)); err == nil {
		return errors.New("this launch had a shim before")
	}
	// Orphans of ranks come to us, so that we can find and reap them even without a cgroup.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("subreaper: %w", err)
	}
	self, err := proc.Of(os.Getpid())
	if err != nil {
		return err
	}
	if err := WriteFile(s.dir, FileShim, self, false); err != nil {
		return err
	}
	control, err := openControl(s.dir)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		s.killRanks()
		s.reapAll(nil)
		return WriteFile(s.dir, FileExit, Exit{TimeNS: time.Now().UnixNano(), Failure: err.Error()}, true)
	}
	go s.supervise(control)
	var exits []RankExit
	s.reapAll(func(e RankExit) {
		exits = append(exits, e)
		if len(s.pids) == 0 {
			return // the last one's is in exit.json, at once
		}
		if err := WriteFile(s.dir, FileRankExit(e.Rank), e, true); err != nil {
			slog.Error("shim: a rank's exit could not be recorded", "rank", e.Rank, "error", err)
		}
	})
	return WriteFile(s.dir, FileExit, Exit{TimeNS: time.Now().UnixNano(), Ranks: exits}, true)
}

func (s *shim) lock() (*os.File, error) {
	for deadline := time.Now().Add(lockPatience); ; {
		f, ok, err := Lock(s.dir)
		if err != nil || ok {
			return f, err
		}
		if time.Now().After(deadline) {
			return nil, errors.New("another shim has this run directory")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func openControl(dir string) (*os.File, error) {
	name := filepath.Join(dir, fileControl)
	if err := unix.Mkfifo(name, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("control: %w", err)
	}
	// Also open for writing, so that reading never ends when an agent closes its side.
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// start starts every rank in order, and says so once all run. A rank that ends meanwhile waits, as a zombie, for reapAll.
func (s *shim) start() error {
	s.pids, s.procs = map[int]uint32{}, map[uint32]proc.ID{}
	leaf, err := s.launch.Group.Open()
	if err != nil {
		return err
	}
	if leaf != nil {
		defer func() { _ = leaf.Close() }()
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	st := Started{}
	for _, r := range s.launch.Ranks {
		pid, err := startRank(r, null, leaf)
		if err != nil {
			return fmt.Errorf("rank %d: %w", r.Rank, err)
		}
		s.pids[pid] = r.Rank
		id, err := proc.Of(pid)
		if err != nil {
			return fmt.Errorf("rank %d: %w", r.Rank, err)
		}
		s.procs[r.Rank] = id
		st.Ranks = append(st.Ranks, RankPid{r.Rank, id})
	}
	st.TimeNS = time.Now().UnixNano()
	return WriteFile(s.dir, FileStarted, st, false)
}

func startRank(r Rank, null, leaf *os.File) (int, error) {
	exe, err := lookPath(r.Argv[0], r.Dir, r.Env)
	if err != nil {
		return 0, err
	}
	out, err := openOutput(r.Stdout)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	errOut, err := openOutput(r.Stderr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = errOut.Close() }()
	// A session of its own: no terminal, and a process group that holds the rank and what it starts in the usual way.
	attr := &syscall.ProcAttr{
		Dir: r.Dir, Env: r.Env,
		Files: []uintptr{null.Fd(), out.Fd(), errOut.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if leaf != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(leaf.Fd())
	}
	pid, err := syscall.ForkExec(exe, r.Argv, attr)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.Argv[0], err)
	}
	return pid, nil
}

// openOutput appends, so that an agent may free what was read long ago without moving the end.
func openOutput(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// lookPath finds a command as the rank itself would: in its own PATH and working directory, not in ours.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, p := range filepath.SplitList(path) {
		if p == "" {
			p = "."
		}
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if full := filepath.Join(p, name); executable(full) == nil {
			return full, nil
		}
	}
	return "", fmt.Errorf("command %q is not in PATH on this node (%s)", name, path)
}

func executable(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", name)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable", name)
	}
	return nil
}

// reapAll waits for every child, ours and those that ranks left to us, and returns when there are none. Once the last
// rank has ended, what the ranks left running is killed, except what was asked to end and may use its grace.
func (s *shim) reapAll(ended func(RankExit)) {
	for {
		if len(s.pids) == 0 && !s.saving() {
			s.killRanks()
		}
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil { // no children
			return
		}
		rank, ok := s.pids[pid]
		if !ok {
			continue
		}
		delete(s.pids, pid)
		e := RankExit{Rank: rank, TimeNS: time.Now().UnixNano(), Asked: closed(s.asked)}
		if ws.Signaled() {
			e.Signal = int(ws.Signal())
		} else {
			e.Code = ws.ExitStatus()
		}
		if ended != nil {
			ended(e)
		}
	}
}

// killRanks kills all ranks and whatever descends from them.
func (s *shim) killRanks() {
	if s.launch.Group.Path != "" {
		if err := s.launch.Group.Kill(); err == nil {
			return
		}
	}
	ids, err := proc.Descendants(os.Getpid())
	if err != nil {
		slog.Error("shim: kill", "error", err)
	}
	for _, id := range ids {
		if err := id.Signal(unix.SIGKILL); err != nil && !errors.Is(err, proc.ErrGone) {
			slog.Error("shim: kill", "pid", id.Pid, "error", err)
		}
	}
}

// terminate asks each rank to end. Only the rank itself gets SIGTERM: a data loader that dies first would disturb the
// save its parent is about to write. A shell would die without telling the commands that it runs, so they get it too.
func (s *shim) terminate() {
	for _, id := range s.procs {
		s.terminateTree(id)
	}
}

func (s *shim) terminateTree(id proc.ID) {
	if shells[id.Comm()] {
		kids, err := proc.Children(id.Pid)
		if err != nil {
			slog.Error("shim: stop", "pid", id.Pid, "error", err)
		}
		for _, k := range kids {
			s.terminateTree(k)
		}
	}
	err := id.Signal(unix.SIGTERM)
	if err == nil {
		s.told = append(s.told, id)
	} else if !errors.Is(err, proc.ErrGone) {
		slog.Error("shim: stop", "pid", id.Pid, "error", err)
	}
}

// saving says that something which was asked to end has not yet: a command whose shell is gone, say.
func (s *shim) saving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.told {
		if id.Alive() {
			return true
		}
	}
	return false
}

var shells = map[string]bool{"sh": true, "bash": true, "dash": true, "ash": true, "zsh": true, "ksh": true}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fenceCheck is how often the fence is looked at; timers stand still while a machine is suspended, the fence doesn't.
const fenceCheck = time.Second

// supervise obeys commands, and the fence, until the process ends.
func (s *shim) supervise(control io.Reader) {
	commands := make(chan string)
	go func() {
		for sc := bufio.NewScanner(control); sc.Scan(); {
			commands <- sc.Text()
		}
	}()
	var killAt time.Time
	stop := func(at time.Time, politely bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !closed(s.asked) {
			close(s.asked)
			if politely {
				s.terminate()
			}
		}
		if killAt.IsZero() || at.Before(killAt) {
			killAt = at
		}
	}
	began := proc.SinceBoot()
	tick := time.NewTicker(fenceCheck)
	defer tick.Stop()
	deadline := time.NewTimer(time.Hour)
	defer deadline.Stop()
	for {
		if !killAt.IsZero() {
			deadline.Reset(time.Until(killAt))
		}
		select {
		case line := <-commands:
			verb, arg, _ := strings.Cut(line, " ")
			now := time.Now()
			switch verb {
			case "stop":
				ns, err := strconv.ParseInt(arg, 10, 64)
				if err != nil {
					slog.Error("shim: control", "line", line)
					continue
				}
				stop(time.Unix(0, ns), true)
			case "kill":
				stop(now, false)
			default:
				slog.Error("shim: control", "line", line)
			}
		case <-tick.C:
			if s.launch.FenceNS == 0 || closed(s.asked) {
				continue
			}
			left := s.contact(began) + s.launch.FenceNS - proc.SinceBoot()
			if left > s.launch.GraceNS {
				continue
			}
			slog.Warn("shim: this node had no contact; ending its ranks before others take their place", "left", time.Duration(left))
			stop(time.Now().Add(time.Duration(left)), true)
		case <-deadline.C:
			if !killAt.IsZero() && !time.Now().Before(killAt) {
				s.killRanks()
				// Again, should one have been forking just then; the process ends when none is left.
				killAt = time.Now().Add(100 * time.Millisecond)
			}
		}
	}
}

// contact is when the agent last had contact; with no answer in the file yet, when this shim began.
func (s *shim) contact(began int64) int64 {
	return max(began, ReadContact(s.launch.Contact))
}

// ReadContact reads a contact file; 0 if there is none.
func ReadContact(name string) int64 {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return ns
}

// WriteContact is the agent's side: it had contact at ns (proc.SinceBoot).
func WriteContact(name string, ns int64) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, append(strconv.AppendInt(nil, ns, 10), '\n'), 0o600); err != nil {
		return fmt.Errorf("contact: %w", err)
	}
	if err := os.Rename(tmp, name); err != nil {
		return fmt.Errorf("contact: %w", err)
	}
	return nil
}
