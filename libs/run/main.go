package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-fabric/weft/libs/obs"
)

// Main runs a service as a program: logs set up by the environment, SIGINT and SIGTERM end it in order, a second one
// at once. It exits with 0 after an orderly end and 1 otherwise.
func Main(s Service) {
	if err := obs.SetupFromEnv(); err != nil {
		fmt.Fprintln(os.Stderr, s.Name()+":", err)
		os.Exit(2)
	}
	os.Exit(runMain(context.Background(), s))
}

func runMain(ctx context.Context, s Service) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect
	slog.Info("service starts", "service", s.Name())
	if err := s.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("service failed", "service", s.Name(), "error", err)
		return 1
	}
	slog.Info("service ended", "service", s.Name())
	return 0
}
