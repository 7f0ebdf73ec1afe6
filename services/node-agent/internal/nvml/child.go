package nvml

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// MaybeChild runs the child's side and ends the process if that is what this process was started for. Every binary that
// opens this provider calls it first in main, before flags, logging or goroutines.
func MaybeChild() {
	if len(os.Args) != 2 || os.Args[1] != Argument {
		return
	}
	if err := serve(os.Stdin, os.Stdout, newLibrary()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// library is what the child does; real or, where that was left out of the build, not.
type library interface {
	do(r request) answer
	// events receives an answer for each event of a watched device; it may be called from any goroutine.
	events(sink func(answer))
}

// serve answers requests until the parent closes the pipe: it ends with its parent, whatever ends that.
func serve(in io.Reader, out io.Writer, lib library) error {
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	send := func(a answer) error {
		mu.Lock()
		defer mu.Unlock()
		return enc.Encode(a)
	}
	lib.events(func(a answer) { _ = send(a) })
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("nvml: malformed request: %w", err)
		}
		a := lib.do(r)
		a.ID = r.ID
		if err := send(a); err != nil {
			return fmt.Errorf("nvml: answer: %w", err)
		}
	}
	return lines.Err()
}
