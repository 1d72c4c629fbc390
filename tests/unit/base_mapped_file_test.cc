// Files in memory, mapped or read, and files that are read piece by piece.
#include "lib/base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lib/base/input_file.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

std::string Text(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
}

TEST(MappedFile, GivesTheBytesOfAnyRange) {
  const test::TempFolder folder;
  std::string content;
  for (int i = 0; i < 3000; ++i) content += std::to_string(i) + ",";
  std::ofstream(folder / "f") << content;
  MemoryMeter meter(0);
  auto whole = MappedFile::Open(folder / "f", &meter);
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(whole.value().mapped());
  EXPECT_EQ(Text(whole.value()), content);
  const int fd = ::open((folder / "f").c_str(), O_RDONLY);
  for (const int64_t offset : {0, 1, 63, 64, 4095, 4096, 4160, 12001}) {
    for (const int64_t n : {0, 1, 1000}) {
      auto file = MappedFile::FromFd(fd, offset, n, "f", &meter);
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(Text(file.value()),
                content.substr(static_cast<size_t>(offset), n == 0 ? std::string::npos : n));
      EXPECT_EQ(file.value().mapped(), offset % 64 == 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(file.value().data()) % 64, 0u);
      EXPECT_EQ(meter.used() > 0, offset % 64 != 0);
      MappedFile moved = std::move(file.value());
      EXPECT_EQ(moved.size(), n == 0 ? static_cast<int64_t>(content.size()) - offset : n);
    }
  }
  EXPECT_EQ(meter.used(), 0);
  EXPECT_EQ(::lseek(fd, 0, SEEK_CUR), 0) << "the position does not change";
  const int64_t size = static_cast<int64_t>(content.size());
  EXPECT_EQ(MappedFile::FromFd(fd, size, 0, "f", &meter).value().size(), 0);
  EXPECT_EQ(MappedFile::FromFd(fd, size + 1, 0, "f", &meter).status().code(), Code::kIo);
  EXPECT_EQ(MappedFile::FromFd(fd, 1, INT64_MAX, "f", &meter).status().code(), Code::kIo);
  EXPECT_EQ(MappedFile::FromFd(fd, INT64_MAX, INT64_MAX, "f", &meter).status().code(), Code::kIo);
  EXPECT_EQ(MappedFile::FromFd(fd, 0, -1, "f", &meter).status().code(), Code::kInvalid);
  ::close(fd);
}

TEST(MappedFile, AskingForHugePagesChangesNothingOfTheContent) {
  const test::TempFolder folder;
  std::string content(size_t{5} << 20, 'x');
  for (size_t i = 0; i < content.size(); i += 4093) content[i] = static_cast<char>('a' + i % 23);
  std::ofstream(folder / "f") << content;
  MemoryMeter meter(0);
  const auto file = MappedFile::Open(folder / "f", &meter);
  ASSERT_TRUE(file.ok());
  file.value().AskForHugePages(0, file.value().size());
  file.value().AskForHugePages(1000, 1);  // nothing that would fill one
  file.value().AskForHugePages(file.value().size(), 0);
  EXPECT_EQ(Text(file.value()), content);
  file.value().Drop(0, file.value().size());
  EXPECT_EQ(Text(file.value()), content);
}

TEST(MappedFile, AnEmptyFileIsEmpty) {
  const test::TempFolder folder;
  std::ofstream(folder / "f").close();
  MemoryMeter meter(0);
  const auto file = MappedFile::Open(folder / "f", &meter);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value().size(), 0);
  EXPECT_FALSE(file.value().mapped());
}

TEST(MappedFile, AnEmptyNameIsSaid) {
  MemoryMeter meter(0);
  const Status status = MappedFile::Open("", &meter).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("the file name is empty"), std::string::npos) << status.message();
  EXPECT_EQ(FileSource::Open("").status().message(), status.message());
}

// Bytes n by n from offset to the end.
std::string ReadFrom(ByteSource* source, int64_t offset, int64_t n) {
  std::string all, piece;
  source->Seek(offset);
  for (int64_t at = offset; at < source->size(); at += n) {
    piece.resize(static_cast<size_t>(std::min(n, source->size() - at)));
    EXPECT_TRUE(source->Read(&piece[0], static_cast<int64_t>(piece.size())).ok());
    all += piece;
  }
  EXPECT_TRUE(source->Next(1).value().empty()) << "nothing is behind the end";
  return all;
}

TEST(FileSource, GivesTheBytesFromAnywhereInAnyPieces) {
  const test::TempFolder folder;
  std::string content;
  for (int i = 0; i < 100000; ++i) content += std::to_string(i) + ",";
  std::ofstream(folder / "f") << content;
  auto file = FileSource::Open(folder / "f");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ByteSource& source = file.value();
  EXPECT_EQ(source.size(), static_cast<int64_t>(content.size()));
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{262143}, int64_t{262144}, source.size() - 1, source.size()})
    for (const int64_t n : {1000, 4096, 262144, 300000, 1 << 20})
      EXPECT_TRUE(ReadFrom(&source, offset, n) == content.substr(static_cast<size_t>(offset)))
          << offset << " " << n;
  uint8_t beyond[2];
  source.Seek(source.size() - 1);
  EXPECT_EQ(source.Read(beyond, 2).code(), Code::kInternal);
}

TEST(FileSource, SaysWhatIsNoFile) {
  const test::TempFolder folder;
  EXPECT_EQ(FileSource::Open(folder / "none").status().code(), Code::kIo);
  EXPECT_NE(FileSource::Open(folder / ".").status().message().find("is a directory"), std::string::npos);
  EXPECT_NE(FileSource::Open("/dev/null").status().message().find("is not a regular file"),
            std::string::npos);
  EXPECT_EQ(FileSource::Open(std::string("a\0b", 3)).status().code(), Code::kInvalid);
  std::ofstream(folder / "empty").close();
  auto empty = FileSource::Open(folder / "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty.value().Next(9).value().empty());
}

}  // namespace
}  // namespace kvc
