package auth

import (
	"context"
	"strings"
)

type key struct{}

// With puts an identity into a context.
func With(ctx context.Context, id Identity) context.Context { return context.WithValue(ctx, key{}, id) }

// From returns the identity of a call; the zero one sees nothing.
func From(ctx context.Context) Identity {
	id, _ := ctx.Value(key{}).(Identity)
	return id
}

// Bearer takes the token out of an Authorization header.
func Bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", false
	}
	return strings.TrimSpace(token), true
}
