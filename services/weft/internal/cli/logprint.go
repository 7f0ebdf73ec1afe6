package cli

import (
	"bytes"
	"fmt"
	"io"
	"path"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
)

// logPrinter writes the output of ranks. While only one rank was ever seen its bytes pass unchanged, so that
// `weft run -- cmd` behaves like cmd; from the second rank on, whole lines carry their rank.
type logPrinter struct {
	a       *app
	job     string
	only    int64 // the one rank seen, -1 before any, -2 once there are several
	partial map[logKey][]byte
	attempt uint32
}

type logKey struct{ rank, fd uint32 }

func newLogPrinter(a *app, job string) *logPrinter {
	return &logPrinter{a: a, job: job, only: -1, partial: map[logKey][]byte{}}
}

func (p *logPrinter) to(fd uint32) io.Writer {
	if fd == 2 {
		return p.a.errOut
	}
	return p.a.out
}

func (p *logPrinter) chunk(m *apiv1.ReadLogsResponse) {
	if p.attempt != 0 && m.GetAttempt() != p.attempt {
		p.flush()
		fmt.Fprintf(p.a.errOut, "-- attempt %d --\n", m.GetAttempt())
	}
	p.attempt = m.GetAttempt()
	if n := m.GetDropped(); n > 0 {
		fmt.Fprintf(p.a.errOut, "-- rank %d: %s left out, since they came too fast; its node keeps the whole file: logs/%s/%d/rank-%d.%s --\n",
			m.GetRank(), bytesText(int64(n)), path.Base(p.job), m.GetAttempt(), m.GetRank(), map[bool]string{true: "err", false: "out"}[m.GetFd() == 2])
	}
	switch p.only {
	case -1:
		p.only = int64(m.GetRank())
	case int64(m.GetRank()), -2:
	default:
		p.only = -2
	}
	if p.only >= 0 {
		_, _ = p.to(m.GetFd()).Write(m.GetData())
		return
	}
	k := logKey{m.GetRank(), m.GetFd()}
	buf := append(p.partial[k], m.GetData()...)
	for {
		i := bytes.IndexByte(buf, '\n')
		if i < 0 {
			break
		}
		p.line(k, buf[:i])
		buf = buf[i+1:]
	}
	p.partial[k] = buf
}

func (p *logPrinter) line(k logKey, text []byte) {
	fmt.Fprintf(p.to(k.fd), "%s %s\n", p.a.paint(fmt.Sprintf("[%d]", k.rank), cyan), text)
}

func (p *logPrinter) flush() {
	for k, rest := range p.partial {
		if len(rest) > 0 {
			p.line(k, rest)
		}
		delete(p.partial, k)
	}
}
