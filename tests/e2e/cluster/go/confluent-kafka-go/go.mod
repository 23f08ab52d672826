// The client in Go around librdkafka, whose own tests run against brokers.
module shoal.dev/confluent-kafka-go

go 1.26.0

require github.com/confluentinc/confluent-kafka-go/v2 v2.11.1

// Its tests can start Kafka by Docker Compose, which is a thousand packages.
replace github.com/testcontainers/testcontainers-go/modules/compose => ./compose
