// Confluent's Parallel Consumer with KEY order that handles a number of records and prints how fast,
// as _workers in key_workers.py does with Shoal's client. Run as a single source file.
//
// Arguments: bootstrap, group, topic, records, workers, milliseconds of work for each record. Prints
// records a second, from the first tenth of the records on. Ends with exit code 1 if a key came out
// of order, or if nothing came for a minute.

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ParallelLoad {
    public static void main(String[] arguments) throws Exception {
        long count = Long.parseLong(arguments[3]), warm = count / 10;
        long workMs = Long.parseLong(arguments[5]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        // Keys are strings: arrays of equal bytes are different keys to the processor.
        KafkaConsumer<String, byte[]> consumer = new KafkaConsumer<>(
                settings, new StringDeserializer(), new ByteArrayDeserializer());
        ParallelStreamProcessor<String, byte[]> processor =
                ParallelStreamProcessor.createEosStreamProcessor(
                        ParallelConsumerOptions.<String, byte[]>builder()
                                .ordering(ProcessingOrder.KEY)
                                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                                .maxConcurrency(Integer.parseInt(arguments[4]))
                                .consumer(consumer)
                                .build());
        AtomicLong done = new AtomicLong(), began = new AtomicLong(), ended = new AtomicLong();
        ConcurrentHashMap<String, Long> last = new ConcurrentHashMap<>();
        CountDownLatch over = new CountDownLatch(1);
        boolean[] disordered = {false};
        processor.subscribe(List.of(arguments[2]));
        processor.poll(context -> {
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException interrupted) {
                return;
            }
            Long before = last.put(context.key(), context.offset());
            if (before != null && before >= context.offset()) {
                disordered[0] = true;
            }
            long number = done.incrementAndGet();
            if (number == warm) {
                began.set(System.nanoTime());
            } else if (number == count) {
                ended.set(System.nanoTime());
                over.countDown();
            }
        });
        long progress = -1;
        while (!over.await(60, TimeUnit.SECONDS)) {
            if (done.get() == progress) {
                System.err.println("nothing came for a minute after " + progress + " records");
                System.exit(1);
            }
            progress = done.get();
        }
        if (disordered[0]) {
            System.err.println("a key came out of order");
            System.exit(1);
        }
        System.out.println((count - warm) * 1e9 / (ended.get() - began.get()));
        System.out.flush();
        System.exit(0);
    }
}
