package nvml

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	sizeWord = regexp.MustCompile(`^(\d+)GB$`)
	formWord = regexp.MustCompile(`^(SXM\d*|PCIE|HBM\w*)$`)
)

// nominal sizes in GiB as cards are sold; what the library reports is a little less.
var nominal = []int{2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 120, 141, 144, 180, 192, 279, 288}

// canonicalModel turns a product name into what manifests write, such as A100-80G: the family, without the form factor,
// and the memory as the card is sold with.
func canonicalModel(name string, memory uint64) string {
	gib := float64(memory) / (1 << 30)
	size := 0
	var family []string
	for _, w := range strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return r == ' ' || r == '-' }) {
		switch m := sizeWord.FindStringSubmatch(w); {
		case m != nil:
			// Some names carry the memory of something else, such as the processor's of a GH200.
			if n, err := strconv.Atoi(m[1]); err == nil && float64(n) >= gib && float64(n) <= gib*1.15 {
				size = n
			}
		case w == "NVIDIA" || w == "TESLA" || w == "GEFORCE" || formWord.MatchString(w):
		default:
			family = append(family, w)
		}
	}
	if size == 0 {
		size = int(gib + 0.5)
		for _, n := range nominal {
			if float64(n) >= gib-0.05 {
				if float64(n) <= gib*1.09 {
					size = n
				}
				break
			}
		}
	}
	if len(family) == 0 {
		family = []string{"UNKNOWN"}
	}
	return strings.Join(family, "-") + "-" + strconv.Itoa(size) + "G"
}
