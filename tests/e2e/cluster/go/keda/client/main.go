// Calls an external scaler with KEDA's own stubs, over a connection with KEDA's options.
//
// Use: client ADDRESS [CA CERTIFICATE KEY], the last three for TLS. Reads JSON objects
// {"method": ..., "name": ..., "namespace": ..., "metadata": {...}, "metric": ...} from standard
// input. Prints for each on a line the answer, or {"code": ..., "error": ...}. StreamIsActive
// prints a line for each of its answers, until it fails or standard input ends.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const serviceConfig = `{"loadBalancingConfig": [{"round_robin":{}}]}`

type call struct {
	Method    string            `json:"method"`
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Metadata  map[string]string `json:"metadata"`
	Metric    string            `json:"metric"`
}

type printer struct {
	sync.Mutex
	*json.Encoder
}

func main() {
	if len(os.Args) != 2 && len(os.Args) != 5 {
		fail(errors.New("use: client ADDRESS [CA CERTIFICATE KEY]"))
	}
	security := insecure.NewCredentials()
	if len(os.Args) == 5 {
		var err error
		if security, err = secured(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fail(err)
		}
	}
	connection, err := grpc.NewClient(os.Args[1],
		grpc.WithDefaultServiceConfig(serviceConfig), grpc.WithTransportCredentials(security))
	if err != nil {
		fail(err)
	}
	client := pb.NewExternalScalerClient(connection)
	out := &printer{Encoder: json.NewEncoder(os.Stdout)}
	decoder := json.NewDecoder(os.Stdin)
	for {
		var next call
		if err := decoder.Decode(&next); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		run(client, next, out)
	}
}

func run(client pb.ExternalScalerClient, next call, out *printer) {
	ctx := context.Background()
	ref := &pb.ScaledObjectRef{
		Name: next.Name, Namespace: next.Namespace, ScalerMetadata: next.Metadata,
	}
	switch next.Method {
	case "IsActive":
		answer, err := client.IsActive(ctx, ref)
		out.print(answer, err)
	case "GetMetricSpec":
		answer, err := client.GetMetricSpec(ctx, ref)
		out.print(answer, err)
	case "GetMetrics":
		request := &pb.GetMetricsRequest{ScaledObjectRef: ref, MetricName: next.Metric}
		answer, err := client.GetMetrics(ctx, request)
		out.print(answer, err)
	case "StreamIsActive":
		stream, err := client.StreamIsActive(ctx, ref)
		go follow(stream, err, out)
	case "StreamMetricSpec":
		stream, err := client.StreamMetricSpec(ctx, ref)
		go follow(stream, err, out)
	default:
		fail(fmt.Errorf("no method %q", next.Method))
	}
}

// follow prints the answers of a stream, and the error that ends it.
func follow[T any](stream grpc.ServerStreamingClient[T], err error, out *printer) {
	for err == nil {
		var answer *T
		answer, err = stream.Recv()
		out.print(answer, err)
	}
}

func (out *printer) print(answer any, err error) {
	out.Lock()
	defer out.Unlock()
	if err != nil {
		failed := status.Convert(err)
		answer = map[string]string{"code": failed.Code().String(), "error": failed.Message()}
	}
	if err := out.Encode(answer); err != nil {
		fail(err)
	}
}

func secured(ca, certificate, key string) (credentials.TransportCredentials, error) {
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	own, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12,
	}), nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "client:", err)
	os.Exit(1)
}
