package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// printProto writes one message as indented JSON, field names as in the .proto files, times and amounts as numbers in
// strings where JSON numbers would lose digits. An empty list is there, as [], for programs that go through it.
func (a *app) printProto(m proto.Message) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	return a.printJSON(v)
}

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, string(b))
	return err
}

// table prints rows under a header in aligned columns; empty rows print note instead.
func (a *app) table(header []string, rows [][]string, note string) {
	if len(rows) == 0 {
		fmt.Fprintln(a.errOut, note)
		return
	}
	width := make([]int, len(header))
	for _, r := range append([][]string{header}, rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for n, r := range append([][]string{header}, rows...) {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			color := colorOf(c)
			if n == 0 {
				color = bold
			}
			b.WriteString(a.paint(c, color))
			if i < len(r)-1 {
				b.WriteString(pad + "  ")
			}
		}
		fmt.Fprintln(a.out, b.String())
	}
}

const (
	plain  = ""
	bold   = "\x1b[1m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	cyan   = "\x1b[36m"
	dim    = "\x1b[2m"
)

func (a *app) paint(s, color string) string {
	if !a.color || color == plain {
		return s
	}
	return color + s + "\x1b[0m"
}

func colorOf(word string) string {
	switch word {
	case "running", "ready", "succeeded", "committed":
		return green
	case "starting", "stopping", "queued", "backoff", "silent", "partial":
		return yellow
	case "failed", "lost", "quarantined":
		return red
	}
	return plain
}

// since prints an age in one or two units.
func since(ns int64) string {
	if ns == 0 {
		return "-"
	}
	return short(time.Since(time.Unix(0, ns)))
}

func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", max(0, d.Milliseconds()))
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	v, unit := float64(n), 0
	for v >= 1024 && unit < 5 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f%ciB", v, "KMGTP"[unit-1])
}

func milliText(n int64) string {
	if n%1000 == 0 {
		return fmt.Sprint(n / 1000)
	}
	return strings.TrimRight(fmt.Sprintf("%.3f", float64(n)/1000), "0")
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// columns is the width of the terminal, or wide when piped.
func (a *app) columns() int {
	if a.width > 0 {
		return a.width
	}
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && w > 20 {
		return w
	}
	return 200
}
