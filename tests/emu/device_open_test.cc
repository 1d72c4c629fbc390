// What is said where the device cannot be had: a wrong number or name, no driver or an old one, no device,
// one that is too old or has no virtual memory.
#define KVC_EXPERIMENTAL
#include <cuda.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "kvc/kvc_experimental.h"
#include "lib/ops/devices.h"
#include "tests/emu/emulator.h"
#include "tests/support/tiny_session.h"

#include <sys/wait.h>
#include <unistd.h>

namespace kvc {
namespace {

class OpenTest : public testing::Test {
 protected:
  void TearDown() override { emu::GetOptions() = {}; }

  static void ExpectRefused(const char* spec, Code code, const std::string& message) {
    const Result<std::unique_ptr<Device>> device = OpenDevice(spec, 1);
    ASSERT_FALSE(device.ok()) << spec;
    EXPECT_EQ(device.status().code(), code) << spec;
    EXPECT_EQ(device.status().message(), message);
  }
};

constexpr char kInChild[] =
    "device \"emu\": a parent of this process used a GPU before it forked, and CUDA works in no child; use "
    "\"cpu\"";

// The first test, as the driver is in use from then on: to ask it for devices is a use.
TEST_F(OpenTest, AChildOfOneThatOnlyLooked) {
  ExpectRefused("emu:9", Code::kUnsupported, "device \"emu:9\": there are 1, counted from 0");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(OpenDevice("emu", 1).status().message() == kInChild ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(OpenTest, Numbers) {
  for (const char* spec : {"emu", "emu:0", "emu:000"}) {
    const Result<std::unique_ptr<Device>> device = OpenDevice(spec, 1);
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ(device.value()->info().name, "emu:0");
  }
  ExpectRefused("emu:1", Code::kUnsupported, "device \"emu:1\": there are 1, counted from 0");
  emu::GetOptions().devices = 2;
  ASSERT_TRUE(OpenDevice("emu:1", 1).ok());
  EXPECT_EQ(OpenDevice("emu:1", 1).value()->info().name, "emu:1");
  ExpectRefused("emu:2", Code::kUnsupported, "device \"emu:2\": there are 2, counted from 0");
  ExpectRefused("emu:999", Code::kUnsupported, "device \"emu:999\": there are 2, counted from 0");
}

TEST_F(OpenTest, WhatIsNoNumber) {
  for (const std::string number : {"", "x", "-1", "+1", " 1", "1 ", "0x1", "1:0", "1000"}) {
    const std::string spec = "emu:" + number;
    ExpectRefused(spec.c_str(), Code::kInvalid, "device \"" + spec + "\": write \"cuda\" or \"cuda:N\"");
  }
  const std::string longest(100, '7');
  ExpectRefused(("emu:" + longest).c_str(), Code::kInvalid,
                "device \"emu:" + longest.substr(0, 28) + "\": write \"cuda\" or \"cuda:N\"");
  ExpectRefused("emu2", Code::kInvalid, "device \"emu2\" is not known; use \"auto\" or one of: cpu, emu");
}

TEST_F(OpenTest, NoDriver) {
  emu::GetOptions().driver = 0;
  ExpectRefused("emu", Code::kUnsupported, "device \"emu\": this machine has no NVIDIA driver; use \"cpu\"");
}

TEST_F(OpenTest, AnOldDriver) {
  emu::GetOptions().runtime = 12040;
  emu::GetOptions().driver = 11080;
  ExpectRefused(
      "emu:0", Code::kUnsupported,
      "device \"emu:0\": the NVIDIA driver is of CUDA 11.8, and this build needs 12.0 or later; use "
      "\"cpu\"");
  emu::GetOptions().driver = 12000;
  EXPECT_TRUE(OpenDevice("emu", 1).ok());
}

// A runtime of CUDA 13 does not work with drivers of CUDA 12, one of 12 with both.
TEST_F(OpenTest, ADriverOlderThanTheRuntime) {
  emu::GetOptions().runtime = 13010;
  emu::GetOptions().driver = 12080;
  ExpectRefused("emu", Code::kUnsupported,
                "device \"emu\": the NVIDIA driver is of CUDA 12.8, and this build needs 13.0 or later; use "
                "\"cpu\"");
  emu::GetOptions().driver = 13000;
  EXPECT_TRUE(OpenDevice("emu", 1).ok()) << "a later one of the same major version";
  emu::GetOptions().runtime = 12080;
  EXPECT_TRUE(OpenDevice("emu", 1).ok());
  emu::GetOptions().driver = 12020;
  EXPECT_TRUE(OpenDevice("emu", 1).ok());
}

// Graphs whose kernels begin early are as old as CUDA 12.3.
TEST_F(OpenTest, ADriverWithoutEarlyEdges) {
  emu::GetOptions().runtime = 12080;
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  for (const int driver : {12020, 12030}) {
    emu::GetOptions().driver = driver;
    auto model = test::OpenEmulated(bytes, 1);
    auto session = test::NewSession(model, "h2o:budget=24");
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    emu::GetCalls() = {};
    ASSERT_EQ(test::Steps(*session, 4).size(), 4u);
    EXPECT_GT(emu::GetCalls().graphs, 0);
    EXPECT_EQ(emu::GetCalls().early > 0, driver == 12030);
  }
}

TEST_F(OpenTest, NoDevice) {
  emu::GetOptions().devices = 0;
  ExpectRefused("emu", Code::kUnsupported, "device \"emu\": the NVIDIA driver has no device; use \"cpu\"");
}

// Whatever else the driver has to say is said.
TEST_F(OpenTest, ADriverThatDoesNotWork) {
  emu::GetOptions().count_error = cudaErrorSystemNotReady;
  ExpectRefused("emu", Code::kUnsupported,
                "device \"emu\": the NVIDIA driver says \"system not yet initialized\"; use \"cpu\"");
}

TEST_F(OpenTest, AnOldDevice) {
  emu::GetOptions().capability = 75;
  ExpectRefused("emu", Code::kUnsupported,
                "device \"emu\": it is older than compute capability 8.0; use \"cpu\"");
  emu::GetOptions().capability = 87;
  const Result<std::unique_ptr<Device>> device = OpenDevice("emu", 1);
  ASSERT_TRUE(device.ok());
  EXPECT_NE(device.value()->info().description.find("compute capability 8.7"), std::string::npos);
}

TEST_F(OpenTest, NoVirtualMemory) {
  emu::GetOptions().virtual_memory = false;
  ExpectRefused("emu", Code::kUnsupported, "device \"emu\": it has no virtual memory; use \"cpu\"");
}

// A program that has neither code nor PTX for the device.
TEST_F(OpenTest, NoKernels) {
  emu::GetOptions().kernels_error = cudaErrorNoKernelImageForDevice;
  ExpectRefused("emu", Code::kUnsupported,
                "device \"emu\": this build's kernels do not run there: no kernel image is available for "
                "execution on the device; use \"cpu\"");
  emu::GetOptions().kernels_error = cudaErrorUnsupportedPtxVersion;
  ExpectRefused(
      "emu", Code::kUnsupported,
      "device \"emu\": this build's kernels do not run there: the provided PTX was compiled with an "
      "unsupported toolchain.; use \"cpu\"");
  for (const cudaError_t e : {cudaErrorInvalidKernelImage, cudaErrorInvalidPtx, cudaErrorJitCompilerNotFound,
                              cudaErrorJitCompilationDisabled}) {
    emu::GetOptions().kernels_error = e;
    ExpectRefused("emu", Code::kUnsupported,
                  std::string("device \"emu\": this build's kernels do not run there: ") +
                      cudaGetErrorString(e) + "; use \"cpu\"");
  }
  emu::GetOptions().kernels_error = cudaErrorMemoryAllocation;
  ExpectRefused("emu", Code::kMemory, "activate: out of memory");
}

// What a kernel has broken stays broken for the process.
TEST_F(OpenTest, ADeviceThatFailedBefore) {
  ASSERT_TRUE(OpenDevice("emu", 1).ok());
  emu::Break();
  ExpectRefused("emu", Code::kDevice,
                "the device, which may have failed earlier in this process: unspecified launch failure");
  emu::Recover();
  EXPECT_TRUE(OpenDevice("emu", 1).ok());
}

// What is refused leaves nothing behind: asked again, it is there.
TEST_F(OpenTest, NoMemoryForAStream) {
  const Result<std::unique_ptr<Device>> device = OpenDevice("emu", 1);
  ASSERT_TRUE(device.ok());
  for (const emu::Call call : {emu::Call::kAllocate, emu::Call::kPin}) {
    emu::GetOptions().refused = call;
    const Result<std::unique_ptr<Stream>> stream = device.value()->NewStream();
    ASSERT_FALSE(stream.ok());
    EXPECT_EQ(stream.status().code(), Code::kMemory);
    EXPECT_EQ(stream.status().message(), "memory for records: out of memory");
    EXPECT_TRUE(device.value()->NewStream().ok());
  }
}

// Threads that call have the context of their own device as before, or none.
TEST_F(OpenTest, CallersKeepTheirContexts) {
  emu::GetOptions().devices = 2;
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  const auto use = [&](const char* spec, int own) {
    const auto expect_own = [&](const char* what) { EXPECT_EQ(emu::CurrentContext(), own) << what; };
    ModelParams params;
    params.device = spec, params.threads = 1;
    auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    ASSERT_TRUE(model.ok()) << model.status().message();
    expect_own("opening");
    for (const char* policy : {"full", "h2o:budget=24", "snapkv:budget=24,window=8,kv=int8,quant_group=16"}) {
      auto session = test::NewSession(model.value(), policy);
      ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
      expect_own("a prompt");
      EXPECT_EQ(test::Steps(*session, 4).size(), 4u);
      expect_own("steps");
      EXPECT_TRUE(test::AllFinite(test::LogitsOf(*session)));
      session->Reset();
      session.reset();
      expect_own("closing");
    }
    model.value().reset();
    expect_own("closing the model");
  };
  for (const char* spec : {"emu:0", "emu:1"}) {
    for (const int own : {-1, 0, 1}) {
      SCOPED_TRACE(testing::Message() << spec << " from a thread of device " << own);
      std::thread([&] {
        if (own >= 0) {
          ASSERT_EQ(cudaSetDevice(own), cudaSuccess);
        }
        use(spec, own);
      }).join();
    }
  }
}

// While another part of the process captures a graph, all that a model and its sessions do goes on, and
// breaks no capture; the thread's own captures are as they were.
TEST_F(OpenTest, AnotherThreadCapturesAGraph) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  const int64_t disturbing = emu::GetCalls().disturbing;
  emu::GetOptions().capturing = true;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1), cudaErrorStreamCaptureUnsupported) << "what the library must not do";
  auto model = test::OpenEmulated(bytes, 1);
  for (const char* policy : {"full", "h2o:budget=24", "snapkv:budget=24,window=8,kv=int8,quant_group=16"}) {
    auto session = test::NewSession(model, policy);
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    EXPECT_EQ(test::Steps(*session, 40).size(), 40u);
    EXPECT_TRUE(test::AllFinite(test::LogitsOf(*session)));
    EXPECT_EQ(emu::CaptureMode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
  model.reset();
  EXPECT_EQ(emu::GetCalls().disturbing, disturbing + 1);
}

// 0: a child is told that neither what its parent opened nor another device can be had there, and closes.
int UseInChild(Session* session) {
  int32_t token = 0;
  const Status step = session->Step(&token);
  if (step.code() != Code::kDevice ||
      step.message() != "a process cannot go on with a GPU that its parent opened")
    return 1;
  return OpenDevice("emu", 1).status().message() == kInChild ? 0 : 2;
}

TEST_F(OpenTest, AChildOfTheProcess) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  auto model = test::OpenEmulated(bytes, 1);
  auto session = test::NewSession(model, "h2o:budget=24");
  ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
  ASSERT_EQ(test::Steps(*session, 4).size(), 4u);
  const pid_t child = ::fork();
  if (child == 0) {
    alarm(60);
    const int failed = UseInChild(session.get());
    session.reset();
    model.reset();
    ::_exit(failed);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(test::Steps(*session, 4).size(), 4u) << "the parent goes on";
}

// What kvc bench compares steps with is the rate of the model's own device, not of the processor: its clock
// stands still here, so that a copy of 128 MiB takes a millisecond.
TEST(Measure, IsOfTheDeviceOfTheModel) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  kvc_model* model = nullptr;
  ASSERT_EQ(kvc_model_open_memory(bytes.data(), static_cast<int64_t>(bytes.size()), "emu", nullptr, &model),
            KVC_OK)
      << kvc_last_error();
  double bytes_per_second = 0;
  EXPECT_EQ(kvc_model_measure(model, &bytes_per_second), KVC_OK) << kvc_last_error();
  EXPECT_EQ(bytes_per_second, 2.0 * (128 << 20) / (static_cast<double>(1.0f) * 1e-3));
  kvc_model_close(model);
}

double Measured() {
  const Result<std::unique_ptr<Device>> device = OpenDevice("emu", 1);
  if (!device.ok()) return 0;
  const Result<double> measured = device.value()->MeasureBandwidth();
  return measured.ok() ? measured.value() : 0;
}

// A copy is a 64th of what the device has, and 1 GiB at most; where that much is not left, a part of it. The
// first call for memory behind opening a device is the measurement's.
TEST_F(OpenTest, ACopyIsAsLargeAsThereIsMemory) {
  const auto rate = [](int64_t bytes) { return 2.0 * static_cast<double>(bytes) / 1e-3; };
  emu::GetOptions().memory = int64_t{1} << 30;
  EXPECT_EQ(Measured(), rate(16 << 20));
  const Result<std::unique_ptr<Device>> device = OpenDevice("emu", 1);
  ASSERT_TRUE(device.ok());
  for (const int64_t refused : {1, 2, 4}) {
    emu::GetOptions().refused = emu::Call::kAllocate;
    emu::GetOptions().refused_after = 0, emu::GetOptions().refused_calls = refused;
    const Result<double> measured = device.value()->MeasureBandwidth();
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    EXPECT_EQ(measured.value(), rate(int64_t{16 << 20} >> refused)) << refused;
  }
  emu::GetOptions().refused = emu::Call::kAllocate;
  emu::GetOptions().refused_after = 0, emu::GetOptions().refused_calls = 5;
  EXPECT_EQ(device.value()->MeasureBandwidth().status().code(), Code::kMemory);
}

}  // namespace
}  // namespace kvc
