// An instance of a Kafka Streams application that reports when it starts and when it gets tasks,
// for bench/run_streams.py. Run as a single source file.
//
// Arguments: bootstrap, application id, input topic, state directory. Prints `started MILLIS` when
// the client starts, `task ID MILLIS` when a task begins, and `closed ID` when one ends. Times are
// those of the wall clock. Ends when standard input does.

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;

public class StreamsLoad {
    private static class Reporter implements Processor<byte[], byte[], Void, Void> {
        private String task;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            task = context.taskId().toString();
            System.out.println("task " + task + " " + System.currentTimeMillis());
        }

        @Override
        public void process(Record<byte[], byte[]> record) { }

        @Override
        public void close() {
            System.out.println("closed " + task);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .process(Reporter::new);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        System.out.println("started " + System.currentTimeMillis());
        streams.start();
        while (System.in.read() >= 0) { }
        streams.close();
    }
}
