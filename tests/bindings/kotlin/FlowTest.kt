// The flow of docs/java.md on a real model: its text, its errors, and that leaving it stops the step that runs.
import dev.kvc.KvcException
import dev.kvc.Model
import dev.kvc.Policy
import dev.kvc.Session
import dev.kvc.Status
import kotlin.system.exitProcess
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking

const val STORY = "The code of Robin is 386. The code of Robin is"

fun <T> withSession(body: suspend (Model, Session) -> T): T =
    Model.open(System.getenv("KVC_RECALL")).use { model ->
        Policy.of("snapkv:budget=64,window=8").use { policy ->
            model.newSession(policy).use { session ->
                session.prefill(*model.prompt(STORY))
                runBlocking { body(model, session) }
            }
        }
    }

fun main() {
    val tests = mapOf<String, () -> Boolean>(
        "the text of a flow is that of the stream" to {
            val stream = withSession { _, session -> session.generate(4).use { it.toList() } }
            val flow = withSession { _, session -> answer(session, 4).toList() }
            flow == stream && flow.joinToString("") == " 386"
        },
        "who leaves a flow cancels its step, and the session goes on" to {
            withSession { model, session ->
                answer(session, 1_000_000).first()
                session.prefill(*model.tokenize(" The code of Robin is", 0))
                answer(session, 4).toList().joinToString("") == " 386"
            }
        },
        "no cancel of a flow that was left, or read to its end, meets the next one" to {
            withSession { model, session ->
                (1..6).all { turn ->
                    answer(session, 1_000).take(turn).collect {}
                    session.prefill(*model.tokenize(" The code of Robin is", 0))
                    val answered = session.stats().nAnswer
                    answer(session, 4).toList().isNotEmpty() && session.stats().nAnswer >= answered + 4
                }
            }
        },
        "an error reaches the collector" to {
            withSession { model, session ->
                session.setTokenMask(IntArray((model.info().vocabSize + 31) / 32)) // no token at all
                val failure = runCatching { answer(session, 4).toList() }.exceptionOrNull()
                failure is KvcException && failure.status() == Status.INVALID
            }
        },
    )
    val failed = tests.filter { (name, test) ->
        val failure = runCatching { if (test()) null else "false" }.getOrElse { it.stackTraceToString() }
        if (failure != null) println("FAILED $name: $failure")
        failure != null
    }
    println("${tests.size - failed.size} passed, ${failed.size} failed")
    exitProcess(if (failed.isEmpty()) 0 else 1)
}
