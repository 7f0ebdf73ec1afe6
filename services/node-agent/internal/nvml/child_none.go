//go:build !cgo || !linux || nonvml

package nvml

// Built says whether the library's adapter is in this binary.
const Built = false

type absent struct{}

func newLibrary() library { return absent{} }

func (absent) do(request) answer {
	return answer{Code: codeNotBuilt, Error: "this binary was built without NVML; use a Linux build made with cgo and without the tag nonvml"}
}

func (absent) events(func(answer)) {}
