package cli

import (
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/services/weft/internal/demo"
)

func demoCmd(a *app) *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train on real data on a simulated fabric, kill a rank half-way, and prove that the job came back right",
		Long: `Start a fabric of two simulated 8-GPU nodes in a temporary directory, train a small network on handwritten digits by
PyTorch DDP on 4 ranks (on the CPU), kill one rank with SIGKILL half-way, and check that the job restarted from its
newest complete save, exactly where that save was, and ended with at least 95 % accuracy on the test set. It leaves
nothing running, and exits non-zero if anything of that did not happen.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Color = a.out, a.color
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Example, "example", "deploy/examples/digits", "directory of the example")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the temporary data directory")
	return cmd
}
