// Runs Kafka's command-line tools one after the other in one JVM, for tests/support/kafka/tool_runner.py.
//
// Each line of standard input is a call: the class of the tool and its words, each in Base64, with
// blanks between them. Each line of standard output is what came of it: the exit status, the output
// and the error output, the latter two in Base64. Ends when standard input does.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.internals.Exit;

public class ToolRunner {
    /** Ends the thread of a tool that exits. */
    private static class Exited extends Error { }

    /** A stream whose target changes with each call: Scala keeps the first System.out. */
    private static class Switch extends OutputStream {
        private volatile OutputStream target = OutputStream.nullOutputStream();

        @Override
        public void write(int value) throws java.io.IOException {
            target.write(value);
        }

        @Override
        public void write(byte[] values, int from, int count) throws java.io.IOException {
            target.write(values, from, count);
        }
    }

    private static final Switch out = new Switch();
    private static final Switch err = new Switch();
    private static final List<Runnable> hooks = new ArrayList<>();
    private static Integer status;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            String[] words = Arrays.stream(call.split(" ")).map(ToolRunner::decode)
                .toArray(String[]::new);
            answers.println(run(words[0], Arrays.copyOfRange(words, 1, words.length)));
        }
        System.exit(0);
    }

    private static String run(String tool, String[] words) throws Exception {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        status = null;
        hooks.clear();
        out.target = said;
        err.target = complained;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) words);
        } catch (InvocationTargetException ended) {
            if (status == null) {  // As a JVM does with an exception of main.
                System.err.print("Exception in thread \"main\" ");
                ended.getCause().printStackTrace();
                status = 1;
            }
        }
        hooks.forEach(Runnable::run);
        System.out.flush();
        System.err.flush();
        out.target = err.target = OutputStream.nullOutputStream();
        return (status == null ? 0 : status) + " " + encode(said) + " " + encode(complained);
    }

    private static void exit(int code) {
        if (status == null) {
            status = code;
            System.out.flush();
            System.err.flush();
            // A tool that catches this error says nothing more.
            out.target = err.target = OutputStream.nullOutputStream();
        }
        throw new Exited();
    }

    private static String decode(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static String encode(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
