package bus

import (
	"fmt"
	"strings"
)

func (r Role) node() (string, bool)   { return strings.CutPrefix(string(r), nodePrefix) }
func (r Role) tenant() (string, bool) { return strings.CutPrefix(string(r), tenantPrefix) }

// InboxPrefix is where a role's replies go: its own place for each node and tenant, so that none can read, or answer
// for, another.
func InboxPrefix(r Role) string {
	if n, ok := r.node(); ok {
		return "_INBOX_" + n
	}
	if t, ok := r.tenant(); ok {
		return "_INBOX_" + t
	}
	return "_INBOX"
}

// ReplyAllowed says whether a service may answer to this reply subject. A node or a tenant can put any subject there,
// and the answer is published with the service's rights: only the caller's own inbox is answered.
func ReplyAllowed(subject, reply string) bool {
	tok := strings.Split(subject, ".")
	if len(tok) >= 3 && tok[0] == "weft" {
		switch tok[1] {
		case "beat", "request", "api":
			return strings.HasPrefix(reply, "_INBOX_"+tok[2]+".")
		case "rpc":
			if len(tok) == 5 { // SubjectNodeRPC
				return strings.HasPrefix(reply, "_INBOX_"+tok[4]+".")
			}
		}
	}
	return strings.HasPrefix(reply, "_INBOX.")
}

// AccountsConf writes the accounts block of a NATS server's configuration, with these users.
func AccountsConf(roles []Role, password func(Role) string) (string, error) {
	users := map[string][]string{}
	for _, r := range roles {
		g, ok := grants(r)
		if !ok {
			return "", fmt.Errorf("bus: no role %q: names of nodes and tenants are [a-z0-9-]{1,63}", r)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "      {user: %q, password: %q, permissions: {\n", r, password(r))
		fmt.Fprintf(&b, "        publish: {allow: [%s], deny: [%s]}\n", quoted(g.publish), quoted(g.deny))
		fmt.Fprintf(&b, "        subscribe: {allow: [%s]}\n", quoted(g.subscribe))
		if g.respond {
			b.WriteString("        allow_responses: {max: 1, expires: \"2m\"}\n")
		}
		b.WriteString("      }}\n")
		users[g.account] = append(users[g.account], b.String())
	}
	var b strings.Builder
	b.WriteString("accounts {\n")
	for _, a := range []string{AccountCore, AccountNodes, AccountDoor} {
		js := "enabled"
		if a == AccountDoor {
			js = "disabled"
		}
		fmt.Fprintf(&b, "  %s {\n    jetstream: %s\n    users: [\n%s    ]\n  }\n", a, js, strings.Join(users[a], ""))
	}
	b.WriteString("  SYS {users: []}\n}\nsystem_account: SYS\n")
	return b.String(), nil
}

func quoted(s []string) string {
	q := make([]string, len(s))
	for i, v := range s {
		q[i] = fmt.Sprintf("%q", v)
	}
	return strings.Join(q, ", ")
}
