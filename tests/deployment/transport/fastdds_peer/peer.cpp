// The other end of a topic, by another vendor: eProsima Fast DDS, and its own encoder Fast CDR.
//
//   peer publish   joints|image|garbage  reliable|best_effort  <domain> <count>
//   peer subscribe joints|image          reliable|best_effort  <domain> <count>
//
// It writes "ready"; "matched" when it subscribes and somebody publishes; a line for each message that comes. When it
// publishes, it begins with a line of its input and ends with the next one. It fails after 60 s.
#include <fastcdr/Cdr.h>
#include <fastcdr/FastBuffer.h>
#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <fastdds/dds/topic/TypeSupport.hpp>
#include <fastdds/rtps/transport/UDPv4TransportDescriptor.h>
#include <fastrtps/utils/IPLocator.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

using namespace eprosima::fastdds::dds;
using eprosima::fastcdr::Cdr;
using eprosima::fastcdr::FastBuffer;
using eprosima::fastrtps::rtps::InstanceHandle_t;
using eprosima::fastrtps::rtps::SerializedPayload_t;

struct Header {
    int32_t sec = 7;
    uint32_t nanosec = 8;
    std::string frame = "base";
};

struct Joints {  // sensor_msgs/msg/JointState
    Header header;
    std::vector<std::string> name;
    std::vector<double> position, velocity, effort;

    static const char* type() { return "sensor_msgs::msg::dds_::JointState_"; }
    static const char* topic() { return "rt/joint_states"; }
    static Joints make(long number) { return {{}, {"shoulder", "elbow"}, {double(number), -0.5}, {}, {1.5}}; }

    template <class Each> void visit(Each each) {
        each(header.sec), each(header.nanosec), each(header.frame);
        each(name), each(position), each(velocity), each(effort);
    }

    void print() const {
        std::cout << "joints " << header.frame;
        for (const auto& each : name) std::cout << " " << each;
        for (double each : position) std::cout << " " << each;
        std::cout << " | " << velocity.size() << " " << effort.size() << std::endl;
    }
};

struct Image {  // sensor_msgs/msg/Image
    Header header;
    uint32_t height = 480, width = 640;
    std::string encoding = "rgb8";
    uint8_t is_bigendian = 0;
    uint32_t step = 1920;
    std::vector<uint8_t> data;

    static const char* type() { return "sensor_msgs::msg::dds_::Image_"; }
    static const char* topic() { return "rt/camera/image_raw"; }
    static Image make(long number) {
        Image made;
        for (uint32_t index = 0; index < 480 * 1920; index++) made.data.push_back(uint8_t(number + index));
        return made;
    }

    template <class Each> void visit(Each each) {
        each(header.sec), each(header.nanosec), each(header.frame);
        each(height), each(width), each(encoding), each(is_bigendian), each(step), each(data);
    }

    void print() const {
        bool whole = data.size() == 480 * 1920;
        for (size_t index = 1; whole && index < data.size(); index++) whole = data[index] == uint8_t(data[0] + index);
        std::cout << "image " << width << "x" << height << " " << encoding << (whole ? " whole " : " torn ")
                  << int(data.empty() ? 0 : data[0]) << std::endl;
    }
};

// How Fast DDS sees a type: by its name, and by functions that encode and decode it.
template <class Message> class Type : public TopicDataType {
public:
    explicit Type(bool garbage) : garbage_(garbage) {
        m_typeSize = 4 + (1 << 20);
        setName(Message::type());
    }

    bool serialize(void* data, SerializedPayload_t* payload) override {
        FastBuffer buffer(reinterpret_cast<char*>(payload->data), payload->max_size);
        Cdr cdr(buffer, Cdr::DEFAULT_ENDIAN, Cdr::DDS_CDR);
        payload->encapsulation = cdr.endianness() == Cdr::BIG_ENDIANNESS ? CDR_BE : CDR_LE;
        cdr.serialize_encapsulation();
        static_cast<Message*>(data)->visit([&cdr](auto& field) { cdr << field; });
        payload->length = cdr.getSerializedDataLength();
        if (garbage_) {  // texts and sequences that claim to be longer than all there is
            std::memset(payload->data + 4, 0xff, payload->length - 4);
        }
        return true;
    }

    bool deserialize(SerializedPayload_t* payload, void* data) override {
        FastBuffer buffer(reinterpret_cast<char*>(payload->data), payload->length);
        Cdr cdr(buffer, Cdr::DEFAULT_ENDIAN, Cdr::DDS_CDR);
        cdr.read_encapsulation();
        static_cast<Message*>(data)->visit([&cdr](auto& field) { cdr >> field; });
        return true;
    }

    std::function<uint32_t()> getSerializedSizeProvider(void*) override {
        return [this] { return m_typeSize; };
    }
    void* createData() override { return new Message(); }
    void deleteData(void* data) override { delete static_cast<Message*>(data); }
    bool getKey(void*, InstanceHandle_t*, bool) override { return false; }

private:
    bool garbage_;
};

static DomainParticipant* join(int domain) {
    DomainParticipantQos qos;
    qos.transport().use_builtin_transports = false;
    auto udp = std::make_shared<eprosima::fastdds::rtps::UDPv4TransportDescriptor>();
    udp->interfaceWhiteList.push_back("127.0.0.1");
    udp->sendBufferSize = udp->receiveBufferSize = 4 << 20;
    qos.transport().user_transports.push_back(udp);
    for (int index = 0; index < 8; index++) {  // the loopback interface has no multicast: each port is asked
        eprosima::fastrtps::rtps::Locator_t peer;
        eprosima::fastrtps::rtps::IPLocator::setIPv4(peer, 127, 0, 0, 1);
        peer.port = 7400 + 250 * domain + 10 + 2 * index;
        qos.wire_protocol().builtin.initialPeersList.push_back(peer);
    }
    return DomainParticipantFactory::get_instance()->create_participant(domain, qos);
}

static auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);

static void pause(const char* purpose) {
    if (std::chrono::steady_clock::now() > deadline) {
        std::cerr << "60 s are over: " << purpose << std::endl;
        _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

template <class Policies> static void choose(Policies& qos, bool reliable) {
    qos.reliability().kind = reliable ? RELIABLE_RELIABILITY_QOS : BEST_EFFORT_RELIABILITY_QOS;
    qos.history().depth = 50;
    qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::PREALLOCATED_WITH_REALLOC_MEMORY_MODE;
}

template <class Message> static void publish(DomainParticipant* participant, Topic* topic, bool reliable, long count) {
    DataWriterQos qos;
    choose(qos, reliable);
    qos.publish_mode().kind = ASYNCHRONOUS_PUBLISH_MODE;  // what is larger than a datagram
    auto* writer = participant->create_publisher(PUBLISHER_QOS_DEFAULT)->create_datawriter(topic, qos);
    std::cout << "ready" << std::endl;
    PublicationMatchedStatus status;
    while (writer->get_publication_matched_status(status), status.current_count == 0) pause("nobody subscribed");
    std::string line;
    std::getline(std::cin, line);
    for (long number = 0; number < count; number++) {
        Message message = Message::make(number);
        writer->write(&message);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::cout << "sent " << count << std::endl;
    std::getline(std::cin, line);  // what is lost is sent again until nobody needs it
}

template <class Message> static void subscribe(DomainParticipant* participant, Topic* topic, bool reliable, long count) {
    DataReaderQos qos;
    choose(qos, reliable);
    auto* reader = participant->create_subscriber(SUBSCRIBER_QOS_DEFAULT)->create_datareader(topic, qos);
    std::cout << "ready" << std::endl;
    SubscriptionMatchedStatus status;
    while (reader->get_subscription_matched_status(status), status.current_count == 0) pause("nobody published");
    std::cout << "matched" << std::endl;
    Message message;
    SampleInfo info;
    for (long received = 0; received < count;) {
        if (reader->take_next_sample(&message, &info) != ReturnCode_t::RETCODE_OK) {
            pause("not every message came");
        } else if (info.valid_data) {
            message.print();
            received++;
        }
    }
}

template <class Message> static void run(bool publishes, bool garbage, bool reliable, int domain, long count) {
    auto* participant = join(domain);
    TypeSupport type(new Type<Message>(garbage));
    type.register_type(participant);
    auto* topic = participant->create_topic(Message::topic(), type.get_type_name(), TOPIC_QOS_DEFAULT);
    (publishes ? publish<Message> : subscribe<Message>)(participant, topic, reliable, count);
}

int main(int argc, char** argv) {
    if (argc != 6) return 2;
    const std::string what = argv[2];
    (what == "image" ? run<Image> : run<Joints>)(std::string(argv[1]) == "publish", what == "garbage",
                                                 std::string(argv[3]) == "reliable", std::stoi(argv[4]),
                                                 std::stol(argv[5]));
    _exit(0);  // Fast DDS tidies up at length
}
