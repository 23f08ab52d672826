// Uses Kafka's clients of each kind once, so that their classes are loaded: for
// tests/support/kafka/class_archives.py. Arguments: bootstrap and a directory for a Streams application's state.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.tools.TopicCommand;

public class ClientKinds {
    private static final String TOPIC = "records";

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Map<String, Object> server = Map.of("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(server)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1))).all().get();
        }
        produce(bootstrap);
        consume(bootstrap);
        share(bootstrap);
        transform(bootstrap, arguments[1]);
        Exit.setExitProcedure((status, message) -> { });
        TopicCommand.main(new String[] {"--bootstrap-server", bootstrap, "--describe"});
    }

    private static void produce(String bootstrap) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "transactional.id", "x", "compression.type", "lz4");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(TOPIC, "key", "value")).get();
            producer.commitTransaction();
        }
    }

    private static void consume(String bootstrap) {
        for (String protocol : List.of("classic", "consumer")) {
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id",
                protocol, "group.protocol", protocol, "auto.offset.reset", "earliest");
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                    settings, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(TOPIC));
                ConsumerRecords<String, String> records = ConsumerRecords.empty();
                while (records.isEmpty()) {
                    records = consumer.poll(Duration.ofMillis(100));
                }
                consumer.commitSync();
            }
        }
    }

    private static void share(String bootstrap) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", "sharers");
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(TOPIC));
            consumer.poll(Duration.ofSeconds(1));
            consumer.commitSync();
        }
    }

    private static void transform(String bootstrap, String state) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(TOPIC, Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .count()
            .toStream()
            .mapValues(String::valueOf)
            .to(TOPIC + "-counts", Produced.with(Serdes.String(), Serdes.String()));
        java.util.Properties settings = new java.util.Properties();
        settings.putAll(Map.of("application.id", "counts", "bootstrap.servers", bootstrap,
            "state.dir", state, "group.protocol", "streams",
            "processing.guarantee", "exactly_once_v2"));
        CountDownLatch running = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    running.countDown();
                }
            });
            streams.start();
            running.await(20, TimeUnit.SECONDS);
        }
    }
}
