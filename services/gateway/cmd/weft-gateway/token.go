package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-fabric/weft/services/gateway"
)

const tokenUsage = "usage: weft-gateway token --file FILE --name NAME --role admin|user|viewer [--tenant TENANT]"

// token makes a token and prints it, once.
func token(args []string, out io.Writer) error {
	var g gateway.Grant
	var file string
	flags := flag.NewFlagSet("weft-gateway token", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&file, "file", "tokens.json", "token `file` of the gateway; made if absent")
	flags.StringVar(&g.Name, "name", "", "who holds the token")
	flags.StringVar(&g.Role, "role", "user", "admin, user or viewer")
	flags.StringVar(&g.Tenant, "tenant", "", "tenant of a user or viewer")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "Makes a token, prints it once, and keeps its hash in the token file. A running gateway reads the file again by itself.\n\n"+tokenUsage)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return nil
	case err != nil:
		return fmt.Errorf("%w; %s", err, tokenUsage)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag; %s", flags.Arg(0), tokenUsage)
	}
	t, err := gateway.CreateToken(file, g)
	if err != nil {
		return fmt.Errorf("%w; %s", err, tokenUsage)
	}
	fmt.Fprintln(out, t)
	return nil
}

// adminToken is the administrator's token that a first start makes beside the token file; "" if the operator made the
// token file, and so has tokens.
func adminToken(data, tokens string) (string, error) {
	file := filepath.Join(data, "admin-token")
	b, err := os.ReadFile(file) // #nosec G304: the operator names the directory
	_, none := os.Stat(tokens)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("admin token: %w", err)
	case none == nil:
		return strings.TrimSpace(string(b)), nil
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", fmt.Errorf("data directory: %w; choose another with --data", err)
	}
	t, err := gateway.CreateToken(tokens, gateway.Grant{Name: "admin", Role: "admin"})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(t), 0o600); err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	return t, nil
}

// door is what the weft command needs to come in.
type door struct {
	GRPC  string `json:"grpc"`
	REST  string `json:"rest"`
	Token string `json:"token"`
}

// writeContext publishes the door by an atomic rename; a reader sees a whole file or none.
func writeContext(data string, d door) error {
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(data, "context.json")
	if err := os.WriteFile(file+".tmp", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}
