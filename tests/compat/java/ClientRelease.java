// What applications do with Kafka's Java clients, for tests/compat/clients/java/test_java_releases.py: it is compiled once,
// and runs with clients from 3.3 on, so it uses nothing that came later. Argument: bootstrap servers.
// Each line of standard output says what a step has seen.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ClientRelease {
    private static final int RECORDS = 300;
    private static String bootstrap;
    private static String name;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        name = arguments[1];
        try (Admin admin = Admin.create(settings(Map.of()))) {
            administer(admin);
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                System.out.println(codec + " " + produce(codec));
            }
            System.out.println("consumed " + consume(name, "group", "read_uncommitted", 5 * RECORDS));
            System.out.println("continued " + consume(name, "group", "read_uncommitted", 0));
            transform();
            System.out.println("committed " + consume(name + "-out", "out", "read_committed", RECORDS));
            inspect(admin);
        }
    }

    private static Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("bootstrap.servers", bootstrap);
        return all;
    }

    private static void administer(Admin admin) throws Exception {
        List<NewTopic> topics = List.of(new NewTopic(name, 2, (short) 1), new NewTopic(name + "-out", 1, (short) 1));
        admin.createTopics(topics).all().get();
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        AlterConfigOp op = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(topic, List.of(op))).all().get();
        String retention = admin.describeConfigs(List.of(topic)).all().get().get(topic).get("retention.ms").value();
        int partitions = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size();
        System.out.println("topic " + partitions + " " + retention);
    }

    private static int produce(String codec) throws Exception {
        Map<String, Object> settings = settings(Map.of("compression.type", codec, "linger.ms", 20));
        int acknowledged = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            var sent = new ArrayList<java.util.concurrent.Future<?>>();
            for (int n = 0; n < RECORDS; n++) {
                sent.add(producer.send(new ProducerRecord<>(name, n % 3, null, codec, "value " + n)));
            }
            for (var one : sent) {
                one.get();
                acknowledged++;
            }
        }
        return acknowledged;
    }

    private static KafkaConsumer<String, String> makeConsumer(String group, String isolation) {
        return new KafkaConsumer<>(
            settings(Map.of("group.id", name + group, "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "isolation.level", isolation)),
            new StringDeserializer(), new StringDeserializer());
    }

    /** Read that many records and commit; with 0, say what comes until the position is the end. */
    private static int consume(String topic, String group, String isolation, int count) {
        int seen = 0;
        try (KafkaConsumer<String, String> consumer = makeConsumer(group, isolation)) {
            consumer.subscribe(List.of(topic));
            while (seen < count || (count == 0 && !isAtEnd(consumer))) {
                seen += consumer.poll(Duration.ofMillis(200)).count();
            }
            consumer.commitSync();
        }
        return seen;
    }

    private static boolean isAtEnd(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        return !ends.isEmpty() && ends.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) == e.getValue());
    }

    /** Move records by transactions, each of which is aborted once before it is committed. */
    private static void transform() throws Exception {
        Map<String, Object> settings = settings(Map.of("transactional.id", name));
        try (KafkaConsumer<String, String> consumer = makeConsumer("transform", "read_committed");
                KafkaProducer<String, String> producer =
                    new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(name));
            int moved = 0;
            while (moved < RECORDS) {
                List<ConsumerRecord<String, String>> batch = new ArrayList<>();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    if (batch.size() + moved < RECORDS) {
                        batch.add(one);
                        offsets.put(new TopicPartition(one.topic(), one.partition()),
                            new OffsetAndMetadata(one.offset() + 1));
                    }
                }
                if (batch.isEmpty()) {
                    continue;
                }
                for (boolean commits : new boolean[] {false, true}) {
                    producer.beginTransaction();
                    batch.forEach(one -> producer.send(new ProducerRecord<>(name + "-out", one.key(), one.value())));
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (commits) {
                        producer.commitTransaction();
                    } else {
                        producer.flush();
                        producer.abortTransaction();
                    }
                }
                moved += batch.size();
            }
        }
    }

    private static void inspect(Admin admin) throws Exception {
        long moved = admin.listConsumerGroupOffsets(name + "transform").partitionsToOffsetAndMetadata().get()
            .values().stream().mapToLong(OffsetAndMetadata::offset).sum();
        TopicPartition first = new TopicPartition(name, 0);
        admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(10))).all().get();
        Map<String, Long> offsets = new TreeMap<>();
        for (Map.Entry<String, OffsetSpec> spec : Map.of("earliest", OffsetSpec.earliest(), "latest",
                OffsetSpec.latest()).entrySet()) {
            ListOffsetsResult.ListOffsetsResultInfo info =
                admin.listOffsets(Map.of(first, spec.getValue())).partitionResult(first).get();
            offsets.put(spec.getKey(), info.offset());
        }
        admin.deleteConsumerGroups(List.of(name + "transform")).all().get();
        admin.deleteTopics(List.of(name, name + "-out")).all().get();
        System.out.println("offsets " + moved + " " + offsets);
    }
}
