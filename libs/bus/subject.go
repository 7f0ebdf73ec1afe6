package bus

import (
	"fmt"
	"strings"
)

// SubjectMatches says whether a subject matches a NATS pattern (* = one token, > = the rest, at least one).
func SubjectMatches(pattern, subject string) bool {
	for {
		p, pRest, pMore := strings.Cut(pattern, ".")
		if p == ">" {
			return subject != ""
		}
		s, sRest, sMore := strings.Cut(subject, ".")
		if s == "" || p != "*" && p != s || pMore != sMore {
			return false
		}
		if !pMore {
			return true
		}
		pattern, subject = pRest, sRest
	}
}

// CheckToken refuses what may not be one token of a subject: nodes, tenants and jobs are [a-z0-9-]{1,63}.
func CheckToken(s string) error {
	if len(s) < 1 || len(s) > 63 {
		return fmt.Errorf("bus: name %q is not 1 to 63 characters long", s)
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("bus: name %q has other characters than a-z, 0-9 and -", s)
		}
	}
	return nil
}

// CheckObjectName refuses what may not name an object.
func CheckObjectName(s string) error {
	if len(s) < 1 || len(s) > 200 {
		return fmt.Errorf("bus: object name %q is not 1 to 200 characters long", s)
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", rune(c)) {
			return fmt.Errorf("bus: object name %q has other characters than A-Z, a-z, 0-9, '-', '_' and '.'", s)
		}
	}
	return nil
}

// CheckHeader refuses the names that a NATS server acts on: they are set by the adapters alone, and a foreign one is never
// passed on.
func CheckHeader(name string) error {
	if name == "" || len(name) >= 5 && strings.EqualFold(name[:5], "nats-") {
		return fmt.Errorf("bus: header %q is not for writers to set", name)
	}
	return nil
}
