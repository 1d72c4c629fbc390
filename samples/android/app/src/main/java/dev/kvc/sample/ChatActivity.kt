package dev.kvc.sample

import android.app.Activity
import android.os.Bundle
import android.widget.Button
import android.widget.EditText
import android.widget.TextView
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext

/** One conversation with assets/model.kvc. The answer is computed beside the main thread and shown as it comes. */
class ChatActivity : Activity(), CoroutineScope by MainScope() {
    private var chat: Chat? = null
    private var answer: Job? = null

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.chat)
        val text = findViewById<TextView>(R.id.text)
        val button = findViewById<Button>(R.id.button)
        launch {
            // A turned phone ends this activity; what withContext returns is lost then, though the model is open.
            var opened: Chat? = null
            try {
                withContext(Dispatchers.Default) { opened = Chat(modelFile().path) }
                chat = opened
                opened = null
                text.text = ""
                button.isEnabled = true
            } catch (e: Exception) {
                text.text = e.message
            } finally {
                opened?.close()
            }
        }
        button.setOnClickListener { if (answer?.isActive == true) chat?.stop() else ask() }
    }

    /**
     * The model as a file of its own, copied from the package once after each installation. In the package it begins at
     * any multiple of 4 bytes, and libkvc maps only what begins at one of 64: the rest it would read into memory.
     */
    private fun modelFile(): File = synchronized(ChatActivity::class.java) {
        val file = File(filesDir, "model.kvc")
        if (file.lastModified() < File(packageCodePath).lastModified()) {
            val part = File(filesDir, "model.part")
            assets.open("model.kvc").use { from -> part.outputStream().use { from.copyTo(it) } }
            check(part.renameTo(file)) { "$file cannot be written" }
        }
        file
    }

    private fun ask() {
        val chat = chat ?: return
        val text = findViewById<TextView>(R.id.text)
        val line = findViewById<EditText>(R.id.line)
        val button = findViewById<Button>(R.id.button)
        val question = line.text.toString()
        line.text.clear()
        text.append("\n> $question\n")
        button.setText(R.string.stop)
        answer = launch {
            try {
                withContext(Dispatchers.Default) {
                    chat.ask(question, 512) { piece -> runOnUiThread { text.append(piece) } }
                }
                findViewById<TextView>(R.id.memory).text = chat.memory()
            } catch (e: Exception) {
                text.append("\n${e.message}\n")
            } finally {
                button.setText(R.string.send)
            }
        }
    }

    override fun onDestroy() {
        cancel()
        chat?.close() // also while it answers: behind the step that runs
        super.onDestroy()
    }
}
