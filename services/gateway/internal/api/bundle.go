package api

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// MaxBundle is the largest bundle in bytes.
const MaxBundle = 256 << 20

// PutBundle stores a bundle under its digest, which the bytes must have.
func (s *Server) PutBundle(st grpc.ClientStreamingServer[apiv1.PutBundleRequest, apiv1.PutBundleResponse]) error {
	first, err := st.Recv()
	if err != nil {
		return status.Error(codes.InvalidArgument, "digest: no message came; send the digest and the chunks")
	}
	chunk := first.GetChunk()
	existed, err := s.StoreBundle(st.Context(), first.GetDigest(), func() ([]byte, error) {
		if chunk != nil {
			c := chunk
			chunk = nil
			return c, nil
		}
		m, err := st.Recv()
		if err != nil {
			return nil, err
		}
		return m.GetChunk(), nil
	})
	if err != nil {
		return err
	}
	return st.SendAndClose(apiv1.PutBundleResponse_builder{Existed: &existed}.Build())
}

// StoreBundle stores the chunks that next returns until io.EOF.
func (s *Server) StoreBundle(ctx context.Context, digest string, next func() ([]byte, error)) (existed bool, err error) {
	if err := mayWrite(auth.From(ctx)); err != nil {
		return false, err
	}
	if !jobspec.IsDigest(digest) {
		return false, status.Errorf(codes.InvalidArgument, "digest: %.80q is not a digest; write b3- and the 64 hex digits of the archive's BLAKE3", digest)
	}
	if existed, err = s.Bundles.Has(ctx, digest); err != nil {
		return false, unavailable("look for the bundle", err)
	}
	if existed {
		return true, nil
	}
	r := &bundleReader{next: next, want: digest, sum: jobspec.NewDigester()}
	err = s.Bundles.Put(ctx, digest, r)
	switch {
	case r.refused != nil:
		return false, r.refused
	case err != nil:
		return false, unavailable("store the bundle", err)
	}
	return false, nil
}

// bundleReader hands bytes on and fails in place of the end if they are too many or not those that were announced, so
// that the bucket drops them.
type bundleReader struct {
	next    func() ([]byte, error)
	want    string
	sum     *jobspec.Digester
	rest    []byte
	size    int
	refused error
}

func (r *bundleReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.refused != nil {
			return 0, r.refused
		}
		chunk, err := r.next()
		if errors.Is(err, io.EOF) {
			if got := r.sum.Digest(); got != r.want {
				return 0, r.refuse("digest: the bytes have %s, not %s; send the archive whole and unchanged", got, r.want)
			}
			return 0, io.EOF
		}
		if err != nil {
			return 0, fmt.Errorf("receive the bundle: %w", err)
		}
		if r.size += len(chunk); r.size > MaxBundle {
			return 0, r.refuse("bundle: more than %d MiB; list what the job does not need in .weftignore, or read data from storage", MaxBundle>>20)
		}
		_, _ = r.sum.Write(chunk)
		r.rest = chunk
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *bundleReader) refuse(format string, args ...any) error {
	r.refused = status.Errorf(codes.InvalidArgument, format, args...)
	return r.refused
}
