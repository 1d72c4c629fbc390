plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "dev.kvc.sample"
    compileSdk = 34
    defaultConfig {
        applicationId = "dev.kvc.sample"
        minSdk = 26
        targetSdk = 34
        versionCode = 1
        versionName = "1"
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
    }
    // Weights hardly become smaller.
    androidResources { noCompress += "kvc" }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
    kotlinOptions { jvmTarget = "17" }
}

dependencies {
    implementation(fileTree("libs") { include("*.aar") }) // kvc.aar
    implementation("org.jetbrains.kotlinx:kotlinx-coroutines-android:1.8.1")
}
